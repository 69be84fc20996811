"""Overhears ``torch.nn.utils.clip_grad_norm_``, also where it was imported by name before, and its two halves,
``get_total_norm`` and ``clip_grads_with_norm_``, where they are looked up in ``torch.nn.utils``."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.nn.utils.clip_grad as clip_grad
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import utils

from dist_checks.probe.fsdp1 import is_wrapped

Before = Callable[[], None]
After = Callable[[Tensor, float], None]
"""(norm, limit)"""


class Clipping:
    """``before`` is called when the norm of the gradients of ``model`` is about to be computed, ``after`` when
    they are about to be clipped by it."""

    def __init__(self, model: nn.Module, before: Before, after: After) -> None:
        self._model = model
        self._parameters = list(model.parameters())
        self._before, self._after = before, after
        # Looked up at call time: whoever has imported clip_grad_norm_ by name comes by here as well.
        self._norm = clip_grad._get_total_norm
        self._clip = clip_grad._clip_grads_with_norm_
        self._public = utils.get_total_norm, utils.clip_grads_with_norm_
        clip_grad._get_total_norm = utils.get_total_norm = self._wrapped_norm()
        clip_grad._clip_grads_with_norm_ = utils.clip_grads_with_norm_ = self._wrapped_clip()
        if is_wrapped(model):
            model.__dict__["clip_grad_norm_"] = self._wrapped_method()

    def stop(self) -> None:
        clip_grad._get_total_norm, clip_grad._clip_grads_with_norm_ = self._norm, self._clip
        utils.get_total_norm, utils.clip_grads_with_norm_ = self._public
        self._model.__dict__.pop("clip_grad_norm_", None)

    def _wrapped_norm(self) -> Any:
        original = self._norm

        @wraps(original)
        def norm(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            tensors = [tensors] if isinstance(tensors, Tensor) else list(tensors)
            if self._is_ours({id(x) for x in tensors}):
                self._before()
            return original(tensors, *args, **kwargs)

        return norm

    def _wrapped_clip(self) -> Any:
        original = self._clip

        @wraps(original)
        def clip(parameters: Any, max_norm: float, total_norm: Tensor, *args: Any, **kwargs: Any) -> Any:
            parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            if self._is_ours({id(p.grad) for p in parameters if p.grad is not None}):
                self._after(total_norm, float(max_norm))
            return original(parameters, max_norm, total_norm, *args, **kwargs)

        return clip

    def _wrapped_method(self) -> Any:
        """FSDP1 clips by a method of its own."""
        original: Any = self._model.clip_grad_norm_

        @wraps(original)
        def clip(max_norm: float, *args: Any, **kwargs: Any) -> Any:
            self._before()
            norm = original(max_norm, *args, **kwargs)
            self._after(norm, float(max_norm))
            return norm

        return clip

    def _is_ours(self, gradients: set[int]) -> bool:
        """All of them: a norm of some is no norm of the model."""
        ours = {id(p.grad) for p in self._parameters if p.grad is not None}
        return bool(ours) and ours <= gradients


def whole(norm: object) -> float | None:
    """The value of a norm, where this rank has it without asking others."""
    if isinstance(norm, DTensor):
        if any(not placement.is_replicate() for placement in norm.placements):
            return None
        norm = norm._local_tensor
    return float(norm) if isinstance(norm, Tensor | float | int) else None
