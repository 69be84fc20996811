"""Which experts each token goes to, sample by sample, in the first steps: whole numbers, so nothing is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dist_checks.probe.hooks import MicroBatch, OutputHooks
from dist_checks.trace import Kind

Sink = Callable[[str, int, dict[int, list[int]], int], None]
"""(router, choices of a token, {sample: the choices of its tokens in ascending order, token after token}, the first of
its tokens)."""

Read = Callable[[Any, Sequence[int], tuple[int, int, int] | None], Any]
"""(output of a router, samples, which tokens of each) -> what holds the choices as its only tensor of whole numbers."""


class RoutingHooks(OutputHooks):
    """On every rank: tells ``sink`` what each of ``routers`` has chosen, which ``read`` finds in its output."""

    def __init__(self, routers: Mapping[str, nn.Module], sink: Sink, read: Read | None = None) -> None:
        super().__init__(routers)
        self._sink = sink
        self._read = read

    def _saw(self, name: str, output: object, batch: MicroBatch) -> None:
        if self._read is not None:
            output = self._read(output, batch.ids, batch.tokens)
        outputs = output if isinstance(output, tuple | list) else (output,)
        whole = [x for x in outputs if isinstance(x, Tensor) and x.dtype == torch.int64 and x.ndim in (2, 3)]
        if not whole:
            return
        chosen = _by_sample(whole[0].detach(), batch)
        if chosen is None or not self._first(Kind.OUTPUT, name):
            return
        chosen = chosen.sort(-1).values
        rows = zip(batch.ids, chosen, chosen[..., 0] >= 0, strict=True)
        experts = {sample: row[real].flatten().tolist() for sample, row, real in rows}
        self._sink(name, chosen.shape[-1], experts, _start(chosen.shape[1], batch.tokens))


def _by_sample(chosen: Tensor, batch: MicroBatch) -> Tensor | None:
    """(samples, length, choices); None where it is not of this batch."""
    rows = len(batch.ids) + batch.padding
    if chosen.ndim == 2 and rows and len(chosen) % rows == 0:
        chosen = chosen.reshape(rows, -1, chosen.shape[-1])
    return chosen[: len(batch.ids)] if chosen.ndim == 3 and len(chosen) in (rows, len(batch.ids)) else None


def _start(length: int, tokens: tuple[int, int, int] | None) -> int:
    """The first of the tokens that a router has seen: under sp blocks see a part of a sequence, routers all of it."""
    return tokens[0] if tokens is not None and length == tokens[1] - tokens[0] else 0
