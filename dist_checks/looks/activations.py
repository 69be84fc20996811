"""What comes out of activation functions: how much of it is zero, or at the end of its range."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from dist_checks.looks.outputs import quietly

RECTIFIERS = ("relu", "relu_", "gelu", "silu", "threshold", "leaky_relu", "elu", "hardtanh", "mish")
BOUNDED = {"tanh": 1.0, "sigmoid": 1.0, "tanh_": 1.0, "sigmoid_": 1.0}
CLOSE = 1e-3
"""To the end of the range."""
NEXT_TO_NOTHING = 1e-8
"""A GELU or SiLU is never quite zero."""


def activations(model: nn.Module, run: Callable[[], object]) -> dict[str, Any]:
    """While ``run`` calls the model: ``{functions: [{module, function, zeros, dead, saturated, largest, std}]}``. These
    are shares of all elements, but for ``dead``, which is of units (of the last dimension) that are zero for every
    token. By dispatch, so that a call of torch.nn.functional is seen as well as a module. ``{missing: true}`` without
    activation functions."""
    stack: list[str] = []
    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_pre_hook(_enter(stack, name), prepend=True))
        handles.append(module.register_forward_hook(_leave(stack), always_call=True))
    mode = _Mode(stack)
    try:
        with quietly(model), mode:
            run()
    finally:
        for handle in handles:
            handle.remove()
    return {"functions": mode.rows} if mode.rows else {"missing": True}


def _enter(stack: list[str], name: str) -> Callable[[nn.Module, Any], None]:
    return lambda module, args: stack.append(name)


def _leave(stack: list[str]) -> Callable[[nn.Module, Any, Any], None]:
    def leave(module: nn.Module, args: Any, output: Any) -> None:
        stack.pop()

    return leave


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, stack: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stack = stack
        self.rows: list[dict[str, Any]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func.__name__.partition(".")[0]
        if (name in RECTIFIERS or name in BOUNDED) and isinstance(output, Tensor) and output.ndim > 1:
            self.rows.append(_row(self._stack[-1] if self._stack else "", name, output))
        return output


def _row(module: str, name: str, output: Tensor) -> dict[str, Any]:
    flat = output.detach().float().flatten(0, -2).abs()
    off = flat <= NEXT_TO_NOTHING
    end = BOUNDED.get(name)
    return {
        "module": module,
        "function": name.rstrip("_"),
        "zeros": float(off.float().mean()),
        "dead": float(off.all(0).float().mean()),
        "saturated": float((flat > end - CLOSE).float().mean()) if end else 0.0,
        "largest": float(flat.max()),
        "std": float(torch.std(flat)) if flat.numel() > 1 else 0.0,
    }
