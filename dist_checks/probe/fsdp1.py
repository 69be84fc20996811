"""What a rank holds under torch's FullyShardedDataParallel (FSDP1): parts of flat parameters, read where they are."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from dist_checks.probe.extents import Part, Unreadable
from dist_checks.probe.header import dtype_name, group_row
from dist_checks.probe.holding import Held, Holding, is_state
from dist_checks.probe.names import plain

FSDP = "torch.distributed.fsdp.fully_sharded_data_parallel"
FLAT = "_flat_param"
"""Name of the parameter that FSDP1 puts in the place of those that it has flattened."""


def is_wrapped(module: object) -> bool:
    """Whether FSDP1 is around ``module`` itself."""
    fsdp = sys.modules.get(FSDP)
    return fsdp is not None and isinstance(module, fsdp.FullyShardedDataParallel)


def is_flat(model: nn.Module) -> bool:
    """Whether FSDP1 is around any module of ``model``."""
    return any(map(is_wrapped, model.modules()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an original parameter lies: the one of this number in the flat parameter of ``handle``."""

    handle: Any
    number: int

    @property
    def flat(self) -> Any:
        """The flat parameter. In it, FSDP1 keeps what it knows of the original ones."""
        return self.handle.flat_param

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.flat._shapes[self.number])

    @property
    def parameter(self) -> Any:
        """The original one, of which this rank has a part, or nothing; None without ``use_orig_params``."""
        return None if self.flat._params is None else self.flat._params[self.number]

    @property
    def stepped(self) -> Any:
        """What an optimizer is given of it."""
        return self.flat if self.parameter is None else self.parameter

    def located(self, x: Tensor) -> Part:
        """``x`` is what this rank has of the parameter, or of something like it; or all of it, not reduced yet."""
        info, elements = self.flat._shard_param_infos[self.number], math.prod(self.shape)
        if x.numel() == elements:
            return Part.flat(x.detach().reshape(-1), self.shape, 0)
        if not info.in_shard or x.numel() != info.numel_in_shard:
            raise Unreadable(f"{x.numel()} elements, of which FSDP1 does not say where they lie")
        return Part.flat(x.detach().reshape(-1), self.shape, info.intra_param_start_idx)

    def part(self, flat: Tensor) -> Part | None:
        """Of a tensor like the flat parameter, as long as the shard of this rank or as all shards; None where nothing
        of it is here."""
        info = self.flat._shard_param_infos[self.number]
        if flat.numel() == self.flat._sharded_size.numel():
            return self.located(flat.narrow(0, info.offset_in_shard, info.numel_in_shard)) if info.in_shard else None
        numbers = [at for at, padding in enumerate(self.flat._is_padding_mask) if not padding]
        start, _ = self.handle._get_flat_param_offsets()[numbers[self.number]]
        return self.located(flat.narrow(0, start, math.prod(self.shape)))


class FlatHolding(Holding):
    """Weights and gradients are those of full precision that the optimizer steps."""

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        super().__init__(model, optimizers, {})
        managed: dict[int, dict[str, Place]] = {}
        shared: list[tuple[int, str, int, str]] = []
        for handle in _handles(model):
            flat = handle.flat_param
            if not all(flat._contiguities) or any(extension is not None for extension in flat._param_extensions):
                raise Unreadable("FSDP1 has flattened parameters that are DTensors, or not contiguous")
            for number, info in enumerate(flat._param_infos):
                managed.setdefault(id(info.module), {})[info.param_name] = Place(handle=handle, number=number)
            shared += [
                (id(info.module), info.param_name, id(info.prim_module), info.prim_param_name)
                for info in flat._shared_param_infos
            ]
        self._places: dict[str, Place] = {}
        names: dict[tuple[int, str], str] = {}
        copies = {(module, name) for module, name, *_ in shared}
        for prefix, module in model.named_modules():
            here = managed.get(id(module), {})
            for name in dict.fromkeys((*module._parameters, *here)):
                full = names[id(module), name] = plain(f"{prefix}.{name}" if prefix else name)
                if name in here:
                    self._places[full] = here[name]
                elif name != FLAT and (id(module), name) not in copies and module._parameters[name] is not None:
                    self._parameters[full] = module._parameters[name]  # not for FSDP1 to manage
            for other, name, *_ in shared:
                if other == id(module):
                    names[other, name] = plain(f"{prefix}.{name}" if prefix else name)
        self._tied = {names[copy, name]: names[first, own] for copy, name, first, own in shared}

    def table(self, tied: Mapping[str, str]) -> list[dict[str, Any]]:
        def row(name: str, of: str | None) -> dict[str, Any]:
            first = of or name
            place = self._places.get(first)
            held: Any = place.stepped if place is not None else self._parameters[first]
            shape = place.shape if place is not None else tuple(held.shape)
            return {
                "name": name,
                "shape": list(shape),
                "dtype": dtype_name(held.dtype),
                "trainable": held.requires_grad,
                "tied": tied.get(name) or of,
            }

        rows = [row(name, None) for name in (*self._places, *self._parameters)]
        return rows + [row(name, of) for name, of in self._tied.items()]

    def groups(self) -> list[dict[str, Any]]:
        names: dict[int, list[str | None]] = {id(x): [name] for name, x in self._parameters.items()}
        for name, place in self._places.items():
            names.setdefault(id(place.stepped), []).append(name)
        return [
            group_row(optimizer, group, [name for x in group["params"] for name in names.get(id(x), [None])])
            for optimizer in self.optimizers
            for group in optimizer.param_groups
        ]

    def weights(self) -> Iterator[Held]:
        for name, place in self._places.items():
            # Sharded and in full precision, also while the model is gathered; there from the first forward pass on.
            yield from _named(name, place.part(getattr(place.flat, "_local_shard", place.flat)))
        yield from super().weights()

    def gradients(self) -> Iterator[Held]:
        yield from self._gradients(self._places)
        yield from super().gradients()

    def _gradients(self, names: Mapping[str, Place] | Sequence[str]) -> Iterator[Held]:
        for name in names:
            place = self._places[name]
            gradient = place.stepped.grad
            if gradient is not None:
                yield from _named(name, place.part(gradient) if place.parameter is None else place.located(gradient))

    def applied(self, optimizer: Optimizer) -> Iterator[Held]:
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        yield from self._gradients([name for name, place in self._places.items() if id(place.stepped) in held])
        yield from super().applied(optimizer)

    def state(self) -> Iterator[Held]:
        for name, place in self._places.items():
            for optimizer in self.optimizers:
                for key, value in optimizer.state.get(place.stepped, {}).items():
                    if is_state(key, value) and value.shape == place.stepped.shape and value.numel():
                        part = place.part(value) if place.parameter is None else place.located(value)
                        yield from _named(f"{name}/{key}", part)
        yield from super().state()


def _named(name: str, part: Part | None) -> Iterator[Held]:
    if part is not None:
        yield name, part


def _handles(model: nn.Module) -> Iterator[Any]:
    for module in model.modules():
        handle = getattr(module, "_handle", None) if is_wrapped(module) else None
        if handle is not None:
            yield handle
