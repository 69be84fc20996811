"""Which kernels ran: of attention, seen in the graph that backward will walk; of the optimizer, seen while it steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from dist_checks.probe.closures import Call, when_ready

MOST_NODES = 1000
"""Of the graph: the block whose output is looked at comes first, what was before it later."""

ATTENTION = ("ScaledDotProduct", "SafeSoftmax")
"""How the nodes of fused kernels begin, and that of the plain computation by scaled_dot_product_attention."""


def attention(output: object) -> set[str]:
    """Names of the attention kernels in the graph of a block's output, such as ``ScaledDotProductFlashAttention``."""
    x = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(x, Tensor) or x.grad_fn is None:
        return set()
    found: set[str] = set()
    seen = {x.grad_fn}
    queue = deque(seen)
    while queue and len(seen) < MOST_NODES:
        node = queue.popleft()
        if node.name().startswith(ATTENTION):
            found.add(node.name().partition("Backward")[0])
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                queue.append(following)
    return found


class OptimizerKernels:
    """Notes what optimizers call in their steps, until :meth:`stop`."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._mode: _Mode | None = None
        self.steps = 0
        self.names: set[str] = set()
        """``fused``, ``foreach``."""
        self._handles: list[RemovableHandle] = []
        for optimizer in optimizers:
            self._handles.append(optimizer.register_step_pre_hook(self._before))
            self._handles.append(optimizer.register_step_post_hook(self._after))

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Call | None:
        return when_ready(args, kwargs, self._watch)

    def _watch(self) -> None:
        if self._mode is None:
            self._mode = _Mode(self.names)
            self._mode.__enter__()  # type: ignore[no-untyped-call]

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._mode = None
            self.steps += 1

    def stop(self) -> None:
        if self._mode is not None:  # a step that raised
            self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self._mode = None
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


class _Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, names: set[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names = names

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        operation = func.__name__
        for kernel in ("fused", "foreach"):
            if operation.startswith(f"_{kernel}_"):
                self._names.add(kernel)
        return func(*args, **(kwargs or {}))
