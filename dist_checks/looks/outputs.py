"""The tensor of logits in whatever a model returns, and how it is put back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from dist_checks.recipes.base import Batch


def positions(output: Any, batch: Batch) -> Tensor | None:
    """The first floating tensor of ``output`` that is (samples, length, ...), as the inputs are; None without one."""
    leaves, _ = tree_flatten(output)
    at = _find(leaves, batch)
    return None if at is None else leaves[at]


def with_positions(output: Any, batch: Batch, logits: Tensor) -> Any:
    """``output`` with other logits in that place."""
    leaves, spec = tree_flatten(output)
    at = _find(leaves, batch)
    assert at is not None, "call only where there are some"
    leaves[at] = logits.to(leaves[at].dtype)
    return tree_unflatten(leaves, spec)


def _find(leaves: list[Any], batch: Batch) -> int | None:
    shape = batch.inputs.shape
    for at, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim > 2 and leaf.shape[:2] == shape[:2]:
            return at
    return None


class quietly:
    """The model without dropout and without gradients, then as it was."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __enter__(self) -> None:
        self._was = {module: module.training for module in self._model.modules()}
        self._model.eval()
        self._grad = torch.is_grad_enabled()
        torch.set_grad_enabled(False)

    def __exit__(self, *error: object) -> None:
        torch.set_grad_enabled(self._grad)
        for module, training in self._was.items():
            module.training = training
