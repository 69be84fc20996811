"""What a rank of a DeepSpeed engine holds under ZeRO 1, 2 and 3, read from its own partitions: nothing is gathered."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from dist_checks.probe.extents import Part, Unreadable
from dist_checks.probe.header import full_shape, group_row
from dist_checks.probe.holding import Held, Holding, is_state


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The elements of one parameter that lie in a flat partition of this rank."""

    name: str
    shape: tuple[int, ...]
    at: int
    """Where they begin in the partition."""
    start: int
    """Where they begin in the parameter, in row-major order."""
    length: int
    padding: int = 0
    """Elements behind them in the partition that belong to no parameter."""

    def of(self, flat: Tensor) -> Part:
        """Of a flat partition, what belongs to the parameter."""
        return self.located(flat.narrow(0, self.at, self.length))

    def located(self, local: Tensor) -> Part:
        return Part.flat(local, self.shape, self.start, self.padding)


def cut_of_group(sizes: Sequence[tuple[int, int]], partition: int, index: int) -> list[tuple[int, int, int, int]]:
    """ZeRO 1 and 2 cut the flat group of all parameters: which (number, at, start, length) are in partition ``index``.

    ``sizes`` are (offset in the group, elements) of each parameter; every partition has ``partition`` elements.
    """
    first, last = partition * index, partition * (index + 1)
    found = []
    for number, (offset, elements) in enumerate(sizes):
        start, stop = max(offset, first), min(offset + elements, last)
        if start < stop:
            found.append((number, start - first, start - offset, stop - start))
    return found


def cut_of_parameter(elements: int, partition: int, index: int) -> tuple[int, int]:
    """ZeRO 3 cuts each parameter: (start, length) of its partition ``index``; the last ones may be shorter or empty."""
    start = min(partition * index, elements)
    return start, min(partition, elements - start)


def engine_holding(engine: Any) -> Holding:
    """Of a DeepSpeed engine in any stage. Raises Unreadable for an optimizer whose partitions are not known here."""
    zero = engine.optimizer
    if hasattr(zero, "fp16_partitioned_groups_flat") or hasattr(zero, "parallel_partitioned_bit16_groups"):
        if getattr(zero, "cpu_offload", False) or getattr(zero, "offload_optimizer", False):
            raise Unreadable(f"{type(zero).__name__} with offload: its gradients are elsewhere")
        return ZeroHolding(engine)
    if isinstance(zero, Optimizer) and type(zero).__module__.partition(".")[0] != "deepspeed":
        return StageZeroHolding(engine)
    raise Unreadable(f"the partitions of {type(zero).__name__} are not known: those of ZeRO 1 to 3 are")


class StageZeroHolding(Holding):
    """Nothing is partitioned: the engine around a plain model and optimizer."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine.module, (engine.optimizer,))
        self._engine = engine

    def evidence(self) -> dict[str, Any]:
        return {"zero_stage": int(self._engine.zero_optimization_stage())}


class ZeroHolding(Holding):
    """Weights are what the model computes with, or where that has 16 bits the float32 partitions that the optimizer
    steps; the model's own copies are recorded as buffers then, ``<parameter>/model``."""

    def __init__(self, engine: Any) -> None:
        zero = engine.optimizer
        self._engine, self._zero = engine, zero
        self._cuts_parameters = hasattr(zero, "fp16_partitioned_groups_flat")
        super().__init__(engine.module, (zero.optimizer,))
        self._names = {parameter: name for name, parameter in self._parameters.items()}
        self._segments = [*map(self._segment_group, range(len(self._flats)))]
        self._narrow = zero.dtype != torch.float32
        self._optimizer_groups = list(self._group_rows())

    # Where things are

    @property
    def _flats(self) -> list[Tensor]:
        """The float32 partitions that the optimizer steps, one for each group."""
        flats: list[Tensor] = (
            self._zero.fp32_partitioned_groups_flat
            if self._cuts_parameters
            else self._zero.single_partition_of_fp32_groups
        )
        return flats

    def _segment_group(self, group: int) -> list[Segment]:
        zero = self._zero
        if self._cuts_parameters:
            return list(self._segments_of_parameters(zero.fp16_groups[group]))
        parameters = zero.round_robin_bit16_groups[group]
        partition = int(zero.partition_size[group])
        index = torch.distributed.get_rank(zero.real_dp_process_group[group])
        sizes = list(zip(self._offsets(group), (p.numel() for p in parameters), strict=True))
        cut = cut_of_group(sizes, partition, index)
        ends = [at for _, at, _, _ in cut[1:]] + [partition]
        return [
            Segment(
                name=self._names[parameters[number]],
                shape=full_shape(parameters[number]),
                at=at,
                start=start,
                length=length,
                padding=end - at - length,
            )
            for (number, at, start, length), end in zip(cut, ends, strict=True)
        ]

    def _offsets(self, group: int) -> list[int]:
        """Where each parameter begins in the flat group."""
        known = getattr(self._zero, "round_robin_bit16_offsets", None)
        if known is not None:
            return list(known[group])
        sizes = [parameter.numel() for parameter in self._zero.round_robin_bit16_groups[group]]
        return [sum(sizes[:number]) for number in range(len(sizes))]

    def _segments_of_parameters(self, parameters: Sequence[Any]) -> Iterator[Segment]:
        at = 0
        for parameter in parameters:
            partition = int(parameter.partition_numel())
            index = torch.distributed.get_rank(parameter.ds_process_group)
            start, length = cut_of_parameter(int(parameter.ds_numel), partition, index)
            if length:
                yield Segment(
                    name=self._names[parameter],
                    shape=full_shape(parameter),
                    at=at,
                    start=start,
                    length=length,
                    padding=partition - length,
                )
            at += partition

    # What is recorded

    def groups(self) -> list[dict[str, Any]]:
        return self._optimizer_groups

    def _group_rows(self) -> Iterator[dict[str, Any]]:
        (optimizer,) = self.optimizers
        held = self._zero.fp16_groups if self._cuts_parameters else self._zero.bit16_groups
        names: dict[int, list[str]] = {}
        for number, parameters in enumerate(held):
            owner = self._zero.sub_group_to_group_id[number] if self._cuts_parameters else number
            names.setdefault(owner, []).extend(self._names[parameter] for parameter in parameters)
        for number, group in enumerate(optimizer.param_groups):
            yield group_row(optimizer, group, names.get(number, []))

    def weights(self) -> Iterator[Held]:
        yield from self.masters() if self._narrow else self._model_copies()
        for name, parameter in self._parameters.items():
            if not parameter.requires_grad:
                yield from self._frozen(name, parameter)

    def _frozen(self, name: str, parameter: Any) -> Iterator[Held]:
        if not self._cuts_parameters:
            yield name, parameter
            return
        for segment in self._segments_of_parameters([parameter]):
            yield name, segment.of(parameter.ds_tensor)

    def masters(self) -> Iterator[tuple[str, Part]]:
        """What the optimizer steps: float32 partitions."""
        for flat, segments in zip(self._flats, self._segments, strict=True):
            for segment in segments:
                yield segment.name, segment.of(flat.detach())

    def _model_copies(self) -> Iterator[Held]:
        """What the model computes with: whole parameters up to stage 2, partitions in stage 3."""
        if not self._cuts_parameters:
            for name, parameter in self._parameters.items():
                if parameter.requires_grad:
                    yield name, parameter
            return
        for parameters in self._zero.fp16_groups:
            for parameter in parameters:
                for segment in self._segments_of_parameters([parameter]):
                    yield segment.name, segment.of(parameter.ds_tensor)

    def buffers(self) -> Iterator[Held]:
        yield from super().buffers()
        if self._narrow:
            for name, copy in self._model_copies():
                yield f"{name}/model", copy

    def gradients(self) -> Iterator[Held]:
        """Between the last backward of a step and the engine's step, which clips them."""
        for group, segments in enumerate(self._segments):
            pieces = self._zero.averaged_gradients.get(group)
            if pieces is not None:
                flat = _Pieces(pieces)
                for segment in segments:
                    yield segment.name, segment.located(flat.narrow(segment.at, segment.length))

    def applied(self, optimizer: Optimizer) -> Iterator[Held]:
        """Of the groups that are stepped in this call: DeepSpeed steps one after the other."""
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for flat, segments in zip(self._flats, self._segments, strict=True):
            if id(flat) in stepped and flat.grad is not None:
                for segment in segments:
                    yield segment.name, segment.of(flat.grad)

    def applied_scale(self, optimizer: Optimizer) -> float:
        return 1.0

    def state(self) -> Iterator[Held]:
        (optimizer,) = self.optimizers
        for flat, segments in zip(self._flats, self._segments, strict=True):
            for key, value in optimizer.state.get(flat, {}).items():
                if is_state(key, value) and value.shape == flat.shape:
                    for segment in segments:
                        yield f"{segment.name}/{key}", segment.of(value)

    def evidence(self) -> dict[str, Any]:
        return {"zero_stage": int(self._engine.zero_optimization_stage())}


class _Pieces:
    """Tensors that are a flat partition together, one behind the other."""

    def __init__(self, pieces: Sequence[Tensor]) -> None:
        self._pieces = pieces
        self._starts = [0]
        for piece in pieces:
            self._starts.append(self._starts[-1] + piece.numel())

    def narrow(self, start: int, length: int) -> Tensor:
        """A view where one piece has all of it; pieces are whole parameters or what the partition has of them."""
        found = []
        for at, piece in zip(self._starts, self._pieces, strict=False):
            low, high = max(start, at), min(start + length, at + piece.numel())
            if low < high:
                found.append(piece.detach().reshape(-1).narrow(0, low - at, high - low))
        return found[0] if len(found) == 1 else torch.cat(found)
