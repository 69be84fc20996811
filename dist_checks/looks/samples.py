"""The samples that a script was heard to train on, kept to be looked at together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dist_checks.recipes.base import Batch

MOST, MOST_ELEMENTS = 1024, 4_000_000


class Samples:
    """Each once, as far as that can be told: as much of a recipe as :func:`dist_checks.looks.statistics.split` asks."""

    mixture = None

    def __init__(self, *, pad: int | None = None, begin: int | None = None, end: int | None = None) -> None:
        self.pad, self.begin, self.end = pad, begin, end
        self.next_token = False
        self._rows: dict[int, Batch] = {}
        self._elements = 0

    @property
    def ids(self) -> list[int]:
        return list(self._rows)

    def add(self, ids: Sequence[int], batch: Batch) -> None:
        """The samples of a forward pass; nothing where ``ids`` do not name each of them."""
        if len(ids) != len(batch.inputs):
            return
        for at, id in enumerate(ids):
            if len(self._rows) >= MOST or self._elements > MOST_ELEMENTS:
                return
            if id not in self._rows:
                row = slice(at, at + 1)
                self._rows[id] = Batch(_kept(batch.inputs[row]), _kept(batch.targets[row]))
                self._elements += batch.inputs[at].numel()

    def collate(self, ids: Sequence[int]) -> Batch:
        rows = [self._rows[id] for id in ids]
        return Batch(torch.cat([row.inputs for row in rows]), torch.cat([row.targets for row in rows]))

    def prompt(self, id: int) -> int:
        return 0

    def source(self, id: int) -> str:
        return ""


def _kept(x: Tensor) -> Tensor:
    return x.detach().to("cpu", copy=True)
