"""Which experts each token goes to, sample by sample, in the first steps: whole numbers, so nothing is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from dist_checks.probe.hooks import MicroBatch, OutputHooks
from dist_checks.trace import Kind

Sink = Callable[[str, int, dict[int, list[int]]], None]
"""(router, choices of a token, {sample: the choices of its tokens in ascending order, token after token})."""


class RoutingHooks(OutputHooks):
    """On every rank: tells ``sink`` what each of ``routers`` has chosen."""

    def __init__(self, routers: Mapping[str, nn.Module], sink: Sink) -> None:
        super().__init__(routers)
        self._sink = sink

    def _saw(self, name: str, output: object, batch: MicroBatch) -> None:
        outputs = output if isinstance(output, tuple | list) else (output,)
        whole = [x for x in outputs if isinstance(x, Tensor) and x.dtype == torch.int64 and x.ndim == 3]
        if not whole or len(whole[0]) != len(batch.ids) or not self._first(Kind.OUTPUT, name):
            return
        chosen = whole[0].detach().sort(-1).values
        rows = zip(batch.ids, chosen, chosen[..., 0] >= 0, strict=True)
        self._sink(name, chosen.shape[-1], {sample: row[real].flatten().tolist() for sample, row, real in rows})
