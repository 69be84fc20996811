"""Which experts each token goes to, sample by sample, in the first steps: whole numbers, so nothing is left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dist_checks.probe.hooks import MicroBatch

Sink = Callable[[str, int, dict[int, list[int]]], None]
"""(router, choices of a token, {sample: the choices of its tokens in ascending order, token after token})."""


class RoutingHooks:
    """On every rank: tells ``sink`` what each of ``routers`` has chosen."""

    def __init__(self, routers: Mapping[str, nn.Module], sink: Sink) -> None:
        self._sink = sink
        self._batch: MicroBatch | None = None
        self._seen: set[str] = set()
        self._handles: list[RemovableHandle] = [
            router.register_forward_hook(self._hook(name)) for name, router in routers.items()
        ]

    def expect(self, batch: MicroBatch | None) -> None:
        """The next forward pass is of ``batch``; None for one that is not to be recorded."""
        self._batch = batch
        self._seen.clear()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, args, output: self._saw(name, output)

    def _saw(self, name: str, output: object) -> None:
        outputs = output if isinstance(output, tuple | list) else (output,)
        whole = [x for x in outputs if isinstance(x, Tensor) and x.dtype == torch.int64 and x.ndim == 3]
        batch = self._batch
        # Once: activation checkpointing runs a router again in backward.
        if batch is None or name in self._seen or not whole or len(whole[0]) != len(batch.ids):
            return
        self._seen.add(name)
        chosen = whole[0].detach().sort(-1).values
        rows = zip(batch.ids, chosen, chosen[..., 0] >= 0, strict=True)
        self._sink(name, chosen.shape[-1], {sample: row[real].flatten().tolist() for sample, row, real in rows})
