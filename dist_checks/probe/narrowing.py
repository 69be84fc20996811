"""Where a model computes with fewer bits than its parameters have: `.float()` in a norm, a rotary embedding, a loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

from dist_checks.probe.header import dtype_name
from dist_checks.probe.names import plain

ISLANDS = ("exp", "log", "sum", "mean", "var", "var_mean", "rsqrt", "logsumexp", "_log_softmax", "nll_loss_forward")
"""What softmax, the statistics of a norm and a loss are made of, where no kernel does all of it with wide sums."""


class Narrowing:
    """Between :meth:`start` and :meth:`stop`, notes each module that meets a float narrower than the widest parameter.

    Singles only: a dispatch mode is slow, and it does not look inside DTensors. What is computed outside of the model
    (a loss in the loop) has the module ``""``. Backward is left out: it repeats what forward did.
    """

    def __init__(self, model: nn.Module) -> None:
        widths = [parameter.dtype.itemsize for parameter in model.parameters() if parameter.is_floating_point()]
        self._stack: list[str] = []
        self._handles: list[RemovableHandle] = []
        for name, module in model.named_modules():
            self._handles.append(module.register_forward_pre_hook(self._enter(plain(name)), prepend=True))
            self._handles.append(module.register_forward_hook(self._leave, always_call=True))
        self._mode = _Mode(self._stack, widest=max(widths, default=0))
        self._running = False

    def _enter(self, name: str) -> Callable[[nn.Module, Any], None]:
        return lambda module, args: self._stack.append(name)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._stack.pop()

    def start(self) -> None:
        if not self._running:
            self._mode.__enter__()  # type: ignore[no-untyped-call]
            self._running = True

    def stop(self) -> None:
        if self._running:
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._running = False

    def remove(self) -> None:
        self.stop()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @property
    def found(self) -> list[dict[str, str]]:
        """``[{module, dtype}]`` in the order of first sight."""
        return [{"module": module, "dtype": dtype_name(dtype)} for module, dtype in self._mode.seen]

    @property
    def islands(self) -> list[dict[str, str]]:
        """``[{operation, module, dtype}]``: in which type these operations were computed."""
        return [
            {"operation": operation, "module": module, "dtype": dtype_name(dtype)}
            for operation, module, dtype in self._mode.islands
        ]


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, stack: list[str], widest: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stack = stack
        self._widest = widest
        self.seen: dict[tuple[str, torch.dtype], None] = {}
        self.islands: dict[tuple[str, str, torch.dtype], None] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if torch._C._current_graph_task_id() == -1:  # not in backward
            operation = func.__name__.partition(".")[0]
            if operation in ISLANDS and args and isinstance(args[0], Tensor) and args[0].is_floating_point():
                self.islands.setdefault((operation, self._stack[-1] if self._stack else "", args[0].dtype))
            # Inputs as well: a float32 buffer that meets a float64 activation narrows it, though the product is wide.
            for x in tree_leaves((args, kwargs, output)):
                if isinstance(x, Tensor) and x.is_floating_point() and x.dtype.itemsize < self._widest:
                    self.seen.setdefault((self._stack[-1] if self._stack else "", x.dtype))
        return output
