"""Block outputs and their gradients, sample by sample, in the first steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from dist_checks.extent import Extent
from dist_checks.probe.extents import Part, Unreadable, locate
from dist_checks.trace import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One forward pass of this rank."""

    ids: tuple[int, ...]
    tokens: tuple[int, int, int] | None = None
    """(start, stop, total): which tokens of each sample the blocks of this rank see; None for all of them."""
    loss_scale: float = 1.0
    padding: int = 0
    """So many rows behind the samples are none."""


class Sink(Protocol):
    """Takes one block's tensor of a micro-batch, dim 0 of which counts its samples."""

    def __call__(self, kind: Kind, name: str, x: Tensor, batch: MicroBatch) -> None: ...


class OutputHooks(ABC):
    """Tells of the outputs of some modules, by name, in the forward passes that are to be recorded."""

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        self._batch: MicroBatch | None = None
        self._seen: set[tuple[Kind, str]] = set()
        self._handles: list[RemovableHandle] = [
            module.register_forward_hook(self._hook(name)) for name, module in modules.items()
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
        return lambda module, args, output: None if self._batch is None else self._saw(name, output, self._batch)

    @abstractmethod
    def _saw(self, name: str, output: object, batch: MicroBatch) -> None:
        """The module ``name`` gave ``output`` in the forward pass of ``batch``."""

    def _first(self, kind: Kind, name: str) -> bool:
        """Whether this is the first of its kind in this forward pass: checkpointing runs a module again in backward."""
        before = len(self._seen)
        self._seen.add((kind, name))
        return len(self._seen) > before


class BlockHooks(OutputHooks):
    """On every rank: gives each block's output, and later the gradient that reaches it, to ``sink``."""

    def __init__(self, blocks: Mapping[str, nn.Module], sink: Sink) -> None:
        super().__init__(blocks)
        self._sink = sink

    def _saw(self, name: str, output: object, batch: MicroBatch) -> None:
        x = output[0] if isinstance(output, tuple | list) and output else output
        if not isinstance(x, Tensor):
            return
        # Once each, but not together: the output of reentrant checkpointing needs a gradient the second time only.
        if self._first(Kind.OUTPUT, name):
            self._sink(Kind.OUTPUT, name, x, batch)
        if x.requires_grad and self._first(Kind.OUTPUT_GRADIENT, name):
            sink = self._sink

            def saw_gradient(gradient: Tensor) -> None:
                sink(Kind.OUTPUT_GRADIENT, name, gradient, batch)

            x.register_hook(saw_gradient)  # type: ignore[no-untyped-call]


def samples(x: Tensor, batch: MicroBatch) -> list[Part]:
    """One part a sample: of the tensor ``[T, ...]`` of all its tokens. Raises Unreadable."""
    whole = locate(x)
    if not whole.local.ndim or whole.local.shape[0] != len(batch.ids) + batch.padding:
        raise Unreadable(f"{len(batch.ids)} samples, but the local shape is {tuple(whole.local.shape)}")
    box = whole.extent.boxes[0]
    shape, offset = _in_full_sequence(whole.extent.shape[1:], box.offset[1:], batch.tokens)
    extent = Extent.box(shape, offset, box.length[1:], whole.extent.partial)
    return [replace(whole, local=row, extent=extent) for row in whole.local.unbind()[: len(batch.ids)]]


def _in_full_sequence(
    shape: Sequence[int], offset: Sequence[int], tokens: tuple[int, int, int] | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and offset of a sample when its dim 0 may be a part of the sequence."""
    if tokens is None or not shape:
        return tuple(shape), tuple(offset)
    start, stop, total = tokens
    if shape[0] == stop - start:
        return (total, *shape[1:]), (offset[0] + start, *offset[1:])
    if shape[0] == total:  # gathered, or a DTensor that knows where it lies
        return tuple(shape), tuple(offset)
    raise Unreadable(f"{shape[0]} tokens, neither those from {start} to {stop} nor all {total}")
