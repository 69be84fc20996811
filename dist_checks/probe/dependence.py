"""What outputs depend on beside the sample: random numbers, and the other samples of the forward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from dist_checks.probe.machine import rng_hash
from dist_checks.probe.names import plain


class Dependence:
    """On every rank, in the first step: does a forward pass of training draw random numbers, and which modules take
    statistics over the samples that they are called with?"""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._device = device
        self._before: str | None = None
        self._draws: bool | None = None
        self._batchwise: dict[str, bool] = {}
        self._handles = [model.register_forward_pre_hook(self._enter), model.register_forward_hook(self._leave)]

    def _enter(self, module: nn.Module, args: Any) -> None:
        if module.training and torch.is_grad_enabled() and not self._draws:
            self._before = rng_hash(self._device)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._before is not None:
            self._draws = rng_hash(self._device) != self._before
            self._before = None
            self._batchwise = {
                plain(name): isinstance(inner, nn.SyncBatchNorm)
                for name, inner in module.named_modules()
                if isinstance(inner, _BatchNorm) and inner.training
            }

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def fields(self) -> dict[str, Any]:
        """``draws``: None where no forward pass of the whole model was seen, as in a pipeline. ``batchwise``: whether
        the module takes its statistics over all data ranks, by name."""
        return {"draws": self._draws, "batchwise": self._batchwise}
