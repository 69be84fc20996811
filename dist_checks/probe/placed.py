"""Plain tensors of which a rank holds a part: by Megatron's attributes, or as the user declares."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from dist_checks.extent import Extent
from dist_checks.probe.extents import Part
from dist_checks.probe.holding import Held, Holding

PARALLEL_STATE = "megatron.core.parallel_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharded:
    """A rank holds part ``index`` of ``of`` equal parts along ``dim``."""

    dim: int
    index: int
    of: int
    stride: int = 1
    """So many tensors are fused along ``dim``, each of them cut (Megatron's ``partition_stride``): gate and up."""

    def full(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Shape of the full tensor, from that of the part."""
        return tuple(size * (self.of if at == self.dim % len(shape) else 1) for at, size in enumerate(shape))

    def parts(self, x: Tensor) -> Iterator[Part]:
        """ValueError where ``x`` has no such dim, or it is not made of ``stride`` equal pieces."""
        if not -x.dim() <= self.dim < x.dim() or x.shape[self.dim] % self.stride:
            raise ValueError(f"a tensor of shape {tuple(x.shape)} is no part {self}")
        shape, dim = self.full(x.shape), self.dim % x.dim()
        each = x.shape[dim] // self.stride
        for piece in range(self.stride):
            local = x.detach().narrow(dim, piece * each, each)
            offset = [0] * x.dim()
            offset[dim] = piece * (shape[dim] // self.stride) + self.index * each
            yield Part(local=local, extent=Extent.box(shape, offset, tuple(local.shape)))


def declared(model: nn.Module, tp: tuple[int, int]) -> bool:
    """Whether parameters say by Megatron's attributes which part of the full tensor they are."""
    return tp_group(tp)[1] > 1 and any(getattr(p, "tensor_model_parallel", False) for p in model.parameters())


def tp_group(tp: tuple[int, int]) -> tuple[int, int]:
    """(rank in its tensor-parallel group, ranks of it): Megatron's own word, else what the rung says."""
    state = sys.modules.get(PARALLEL_STATE)
    if state is not None and state.model_parallel_is_initialized():
        return int(state.get_tensor_model_parallel_rank()), int(state.get_tensor_model_parallel_world_size())
    return tp


class PlacedHolding(Holding):
    """``extents`` go before attributes; what neither speaks of says itself where it lies."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        extents: Mapping[str, Sharded],
        tp: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__(model, optimizers)
        index, of = tp_group(tp)
        self._sharded: dict[str, Sharded] = {}
        for name, parameter in self._parameters.items():
            found = next((extent for pattern, extent in extents.items() if fnmatchcase(name, pattern)), None)
            if found is None and of > 1 and getattr(parameter, "tensor_model_parallel", False):
                found = Sharded(
                    dim=int(parameter.partition_dim), index=index, of=of, stride=int(parameter.partition_stride)
                )
            if found is not None:
                self._sharded[name] = found

    def table(self, tied: Mapping[str, str]) -> list[dict[str, Any]]:
        rows = super().table(tied)
        for row in rows:
            if (found := self._sharded.get(row["tied"] or row["name"])) is not None:
                row["shape"] = list(found.full(row["shape"]))
        return rows

    def weights(self) -> Iterator[Held]:
        return self._placed(super().weights())

    def gradients(self) -> Iterator[Held]:
        """Megatron adds gradients up in ``main_grad``."""
        for name, parameter in self._parameters.items():
            gradient = getattr(parameter, "main_grad", None)
            gradient = parameter.grad if gradient is None else gradient
            if gradient is not None:
                yield from self._placed(iter([(name, gradient)]))

    def applied(self, optimizer: Optimizer) -> Iterator[Held]:
        return self._placed(super().applied(optimizer))

    def state(self) -> Iterator[Held]:
        return self._placed(super().state())

    def _placed(self, held: Iterator[Held]) -> Iterator[Held]:
        for name, x in held:
            found = self._sharded.get(name.partition("/")[0])
            if found is None or not isinstance(x, Tensor):
                yield name, x
            else:
                for part in found.parts(x):
                    yield name, part
