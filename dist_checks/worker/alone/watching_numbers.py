"""Which operation first makes a number that is not finite, and how near to the end of their range the others come."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dist_checks.probe.header import dtype_name

MADE = ("scalar_tensor", "full", "full_like", "new_full", "fill", "fill_", "masked_fill", "masked_fill_", "where")
"""Put a number there that somebody wrote down: the infinity of a mask is meant."""

FINITE, LOW, HIGH, NAN = range(4)


_FRAME = re.compile(r'File "([^"]*)", line (\d+), in (\S+)\s*(.*)')
_OF_TORCH = str(Path(torch.__file__).parent)


class Numbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """As a context, around forward and backward of ``model``. Under ``torch.autograd.set_detect_anomaly(True)`` a
    backward operation is named with the call in forward that it belongs to."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.first: dict[str, Any] | None = None
        """``{module, operation, dtype, backward, largest_input}`` of the operation whose output is worse than anything
        that went into it: minus infinity (which masks have), infinity, NaN. In backward, ``node`` and ``call`` as well:
        what autograd calls it, and where forward made it."""
        self.nan: dict[str, Any] | None = None
        """The same of the first NaN."""
        self.largest: dict[str, float] = {}
        """Largest finite magnitude of what the operations of each module gave, in the order of first sight."""
        self._stack: list[str] = []
        self._made: dict[int, str] = {}
        """By autograd's number of a node, the module that made it in forward."""
        self._handles = []
        for name, module in model.named_modules():
            self._handles.append(module.register_forward_pre_hook(_enter(self._stack, name), prepend=True))
            self._handles.append(module.register_forward_hook(_leave(self._stack), always_call=True))

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func.__name__.partition(".")[0]
        backward = torch._C._current_graph_task_id() != -1
        module = "" if backward else self._stack[-1] if self._stack else ""
        if not backward:
            number = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]  # of the node just made
            self._made.setdefault(number, module)
        worst = FINITE
        for x in tree_leaves(output):
            if not isinstance(x, Tensor) or not x.is_floating_point() or not x.numel():
                continue
            finite = torch.isfinite(x)
            if not backward:
                kept = x.detach().masked_fill(~finite, 0).abs().max()
                self.largest[module] = max(self.largest.get(module, 0.0), float(kept))
            if not bool(finite.all()):
                worst = max(worst, _level(x))
        if worst > FINITE and name not in MADE and (self.first is None or (self.nan is None and worst is NAN)):
            inputs = [y for y in tree_leaves((args, kwargs)) if isinstance(y, Tensor) and y.is_floating_point()]
            if worst > max(map(_level, inputs), default=FINITE):
                found = {
                    "module": module,
                    "operation": name,
                    "dtype": dtype_name(next(x.dtype for x in tree_leaves(output) if isinstance(x, Tensor))),
                    "backward": backward,
                    "largest_input": max(map(_largest, inputs), default=0.0),
                    **(self._node() if backward else {}),
                }
                self.first = self.first or found
                self.nan = found if worst is NAN else self.nan
        return output

    def _node(self) -> dict[str, str]:
        """Of the node of the graph that is running backward."""
        node: Any = torch._C._current_autograd_node()
        if node is None:
            return {}
        number = node._sequence_nr()
        return {"node": node.name(), "module": self._made.get(number, ""), "call": _call(node.metadata)}


def _call(metadata: Mapping[str, Any]) -> str:
    """The innermost line outside of torch that made a node: ``x.sqrt() (model.py:12, in forward)``."""
    for frame in reversed(metadata.get("traceback_") or ()):
        if (found := _FRAME.search(frame)) and not found[1].startswith(_OF_TORCH) and found[1] != __file__:
            where = f"{Path(found[1]).name}:{found[2]}, in {found[3]}"
            return f"{found[4].splitlines()[0].strip()} ({where})" if found[4] else where
    return ""


def _level(x: Tensor) -> int:
    if bool(torch.isfinite(x).all()):
        return FINITE
    return NAN if bool(torch.isnan(x).any()) else HIGH if bool(torch.isposinf(x).any()) else LOW


def _largest(x: Tensor) -> float:
    return float(x.detach().nan_to_num(0.0, 0.0, 0.0).abs().max()) if x.numel() else 0.0


def _enter(stack: list[str], name: str) -> Callable[[nn.Module, Any], None]:
    return lambda module, args: stack.append(name)


def _leave(stack: list[str]) -> Callable[[nn.Module, Any, Any], None]:
    def leave(module: nn.Module, args: Any, output: Any) -> None:
        stack.pop()

    return leave
