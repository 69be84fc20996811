"""What can be switched on: the axes, a setting of them, and the grid of ranks that a setting needs. No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Literal

Value = int | bool | str

PRECISIONS = ("fp64", "fp32", "bf16", "fp16", "bf16_params", "fp16_params")
"""The last two are singles only: the model itself in 16 bits, of which the optimizer steps a float32 copy."""

ZERO_STAGES = (1, 2, 3)
"""The values of zero that are DeepSpeed's."""


class Axis(StrEnum):
    """Every axis that a rung can switch on, outermost in the grid of ranks first."""

    PP = "pp"
    DP_REPLICATE = "dp_replicate"
    DP_SHARD = "dp_shard"
    EP = "ep"
    CP = "cp"
    TP = "tp"
    SP = "sp"
    ZERO = "zero"
    SCHEDULE = "schedule"
    ACCUM = "accum"
    CKPT_ACT = "ckpt_act"
    COMPILE = "compile"
    FUSED = "fused"
    PRECISION = "precision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What an axis is, apart from how it is applied (that is in ``worker/axes``)."""

    axis: Axis
    takes: Literal["degree", "switch", "choice"]
    meaning: str
    structural: bool = True
    """Structural axes change how the work is split; the others change the numbers that are computed with."""
    devices: bool = False
    """The world is ``degree`` times larger."""
    data: bool = False
    """Ranks along this axis read different samples."""
    sequence: bool = False
    """Ranks along this axis hold different parts of the sequence: a rank's loss is that of its part."""
    needs: tuple[Axis, ...] = ()
    refuses: tuple[tuple[Axis, str], ...] = ()
    """The axes that it cannot be combined with, each with the reason that the plan shows."""
    choices: tuple[int | str, ...] = ()
    plain: bool = True
    """Of a choice: a rung is named by the value alone (``bf16``); else by axis and value (``zero3``)."""
    default: tuple[Value, ...] = ()
    """The values that the built-in ladder tries. Degrees of different axes are coprime where the world allows it, so
    that a gradient which is 3.000 x the reference has one suspect."""

    @property
    def off(self) -> Value:
        """The value that means off. For a choice there is none: the matrix decides which one is the plain one."""
        off: dict[str, Value] = {"degree": 1, "switch": False, "choice": ""}
        return off[self.takes]

    def parse(self, value: object) -> Value:
        """The value that the user wrote, or ValueError with the rule that it breaks."""
        match self.takes:
            case "degree":
                if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
                    return value
                raise ValueError(f"{self.axis} takes a whole number of at least 1 (1 is off), not {value!r}")
            case "switch":
                if isinstance(value, bool):
                    return value
                raise ValueError(f"{self.axis} takes true or false, not {value!r}")
            case "choice":
                if value in self.choices and not isinstance(value, bool):
                    assert isinstance(value, int | str)
                    return value
                raise ValueError(f"{self.axis} takes one of {', '.join(map(str, self.choices))}, not {value!r}")

    def word(self, value: Value) -> str:
        """What ``value`` is called in the name of a rung: ``tp2``, ``sp``, ``zero3``, ``bf16``."""
        match self.takes:
            case "degree":
                return f"{self.axis}{value}"
            case "switch":
                return f"{self.axis}"
            case "choice":
                return f"{value}" if self.plain else f"{self.axis}{value}"

    def unword(self, part: str) -> Value | None:
        """The value that is called ``part``; None where it is not one of this axis."""
        if self.takes == "degree":
            number = part.removeprefix(self.axis)
            return int(number) if number != part and number.isdecimal() else None
        values: tuple[Value, ...] = (True,) if self.takes == "switch" else self.choices
        return next((value for value in values if part == self.word(value)), None)


SPECS: tuple[Spec, ...] = (
    Spec(
        axis=Axis.PP,
        takes="degree",
        meaning="layers split over stages, which pass micro-batches on: torch.distributed.pipelining",
        devices=True,
        default=(2,),
    ),
    Spec(
        axis=Axis.DP_REPLICATE,
        takes="degree",
        meaning="replicas that read different samples and average their gradients: DDP; with dp_shard, HSDP",
        devices=True,
        data=True,
        default=(3,),
    ),
    Spec(
        axis=Axis.DP_SHARD,
        takes="degree",
        meaning="parameters, gradients and optimizer state sharded over ranks that read different samples: FSDP2",
        devices=True,
        data=True,
        default=(3, 2),
    ),
    Spec(
        axis=Axis.EP,
        takes="degree",
        meaning="experts of a mixture spread over ranks that read different samples; tokens travel by all-to-all",
        devices=True,
        data=True,
        refuses=(
            (Axis.ZERO, "DeepSpeed would average the gradients of experts over all data ranks"),
            (Axis.CP, "gradients of experts are not added up over parts of the sequence"),
            (Axis.PP, "the balance of a mixture of experts does not travel from stage to stage"),
        ),
        default=(2,),
    ),
    Spec(
        axis=Axis.CP,
        takes="degree",
        meaning="the sequence split over ranks, which exchange keys and values in attention",
        devices=True,
        sequence=True,
        refuses=(
            (Axis.PP, "the stages of the pipeline take whole sequences"),
            (Axis.EP, "the gradients of experts are not reduced over parts of the sequence"),
            (Axis.ZERO, "its engine averages gradients over data ranks only"),
        ),
        default=(2,),
    ),
    Spec(
        axis=Axis.TP,
        takes="degree",
        meaning="matrices sharded by columns and rows, vocabulary-parallel embedding and loss",
        devices=True,
        default=(2,),
    ),
    Spec(
        axis=Axis.SP,
        takes="switch",
        meaning="norms computed on a part of the sequence, inside tp",
        needs=(Axis.TP,),
        default=(True,),
    ),
    Spec(
        axis=Axis.ZERO,
        takes="choice",
        meaning="optimizer state (1), gradients (2), parameters (3) partitioned over replicas by DeepSpeed; "
        "redundancy: torch's ZeroRedundancyOptimizer",
        needs=(Axis.DP_REPLICATE,),
        refuses=(
            (Axis.DP_SHARD, "both partition what replicas hold"),
            (
                Axis.TP,
                "DeepSpeed flattens parameters, which DTensor does not allow, and has a tensor parallelism of its own",
            ),
            (Axis.SP, "it works inside tp"),
            (Axis.PP, "DeepSpeed has pipeline stages of its own"),
            (Axis.EP, "DeepSpeed has experts of its own"),
            (Axis.CP, "DeepSpeed averages over all ranks, and has a sequence parallelism of its own"),
        ),
        choices=(*ZERO_STAGES, "redundancy"),
        plain=False,
        default=(1, 2, 3),
    ),
    Spec(
        axis=Axis.SCHEDULE,
        takes="choice",
        meaning="the order in which stages work, where it is not gpipe",
        needs=(Axis.PP,),
        choices=("1f1b", "interleaved", "zerobubble"),
        default=("1f1b", "interleaved"),
    ),
    Spec(axis=Axis.ACCUM, takes="degree", meaning="micro-batches for one optimizer step", default=(5,)),
    Spec(
        axis=Axis.CKPT_ACT,
        takes="switch",
        meaning="activation checkpointing: blocks are computed again in backward",
        default=(True,),
    ),
    Spec(
        axis=Axis.COMPILE,
        takes="switch",
        meaning="torch.compile for each block",
        structural=False,
        default=(True,),
    ),
    Spec(
        axis=Axis.FUSED,
        takes="switch",
        meaning="fused kernels of attention and optimizer",
        structural=False,
        default=(True,),
    ),
    Spec(
        axis=Axis.PRECISION,
        takes="choice",
        meaning="numbers that are computed with: fp64, fp32, bf16 or fp16 autocast, the last with loss scaling; "
        "bf16_params, fp16_params: the model in 16 bits",
        structural=False,
        choices=PRECISIONS,
        default=("bf16", "fp16"),
    ),
)
SPEC: dict[Axis, Spec] = {spec.axis: spec for spec in SPECS}


class Setting(Mapping[Axis, Value]):
    """The axes that are switched on, with their values, in the order of :class:`Axis`. Hashable; named like a rung."""

    __slots__ = ("_on",)

    def __init__(self, on: Mapping[Axis, Value] | Mapping[str, Value] | None = None) -> None:
        given = {Axis(axis): value for axis, value in (on or {}).items()}
        self._on = {axis: given[axis] for axis in Axis if axis in given and given[axis] != SPEC[axis].off}

    def __getitem__(self, axis: Axis) -> Value:
        return self._on[axis]

    def __iter__(self) -> Iterator[Axis]:
        return iter(self._on)

    def __len__(self) -> int:
        return len(self._on)

    def __hash__(self) -> int:
        return hash(tuple(self._on.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Setting) and self._on == other._on

    def __repr__(self) -> str:
        return f"Setting({self.name})"

    def degree(self, axis: Axis) -> int:
        """The degree of an axis that takes one; 1 where it is off."""
        return int(self._on.get(axis, 1))

    @property
    def name(self) -> str:
        """``tp2+sp+accum5+bf16``; ``single`` with every axis off."""
        return "+".join(SPEC[axis].word(value) for axis, value in self._on.items()) or "single"

    @classmethod
    def parse(cls, name: str) -> Setting:
        """The setting of that name: ``tp2+sp``. Raises ValueError where a part of it is no axis."""
        on: dict[Axis, Value] = {}
        for part in name.split("+") if name != "single" else ():
            axis, value = _parse_part(part)
            if axis in on:
                raise ValueError(f"'{name}' sets {axis} twice")
            on[axis] = value
        return cls(on)

    @property
    def structural(self) -> Setting:
        return Setting({axis: value for axis, value in self._on.items() if SPEC[axis].structural})

    @property
    def numerics(self) -> Setting:
        return Setting({axis: value for axis, value in self._on.items() if not SPEC[axis].structural})

    def without(self, axis: Axis) -> Setting:
        return Setting({other: value for other, value in self._on.items() if other != axis})

    def neighbours(self) -> dict[Axis, Setting]:
        """The same with one axis switched off, for each axis that can be switched off alone."""
        return {
            axis: self.without(axis)
            for axis in self._on
            if not any(axis in SPEC[other].needs for other in self._on if other != axis)
        }

    def cutters(self, axis: Axis) -> tuple[Axis, ...]:
        """Over the ranks of which axes, outermost first, ``axis`` cuts: its own, or, as a switch such as sp, those of
        the axis that it needs. What sp cuts is a part of the sequence already, under cp."""
        if SPEC[axis].takes == "degree":
            return (axis,)
        return (*(other for other in self._on if SPEC[other].sequence), *SPEC[axis].needs)

    def must_divide(self, axis: Axis, name: str, number: int) -> str:
        """The rule that is broken where ``axis`` cuts ``number`` into unequal parts; else an empty string."""
        axes = self.cutters(axis)
        degrees = [self.degree(each) for each in axes]
        if number % math.prod(degrees) == 0:
            return ""
        return f"{' x '.join(axes)} degree ({' x '.join(map(str, degrees))}) must divide {name} ({number})"

    def to_json(self) -> dict[str, Value]:
        return {axis.value: value for axis, value in self._on.items()}


def _parse_part(part: str) -> tuple[Axis, Value]:
    for spec in SPECS:
        if (value := spec.unword(part)) is not None:
            return spec.axis, value
    raise ValueError(f"'{part}' is no axis with its value, such as tp2, sp or bf16")


@dataclass(frozen=True)
class Layout:
    """The grid of ranks of a setting. The last axis varies fastest: the ranks of a tp group are next to each other."""

    setting: Setting

    @cached_property
    def degrees(self) -> dict[Axis, int]:
        """Of every axis that takes devices, outermost first, those of degree 1 too."""
        return {spec.axis: self.setting.degree(spec.axis) for spec in SPECS if spec.devices}

    @property
    def world_size(self) -> int:
        return math.prod(self.degrees.values())

    @property
    def data_size(self) -> int:
        """How many different parts of a batch are read at the same time."""
        return math.prod(degree for axis, degree in self.degrees.items() if SPEC[axis].data)

    def coordinates(self, rank: int) -> dict[Axis, int]:
        """Where a rank stands on each axis that takes devices."""
        out: dict[Axis, int] = {}
        for axis, degree in reversed(self.degrees.items()):
            rank, out[axis] = divmod(rank, degree)
        return {axis: out[axis] for axis in self.degrees}

    def data_rank(self, rank: int) -> int:
        """Which part of a batch the rank reads, 0 <= data_rank < data_size."""
        index = 0
        for axis, at in self.coordinates(rank).items():
            if SPEC[axis].data:
                index = index * self.degrees[axis] + at
        return index

    def group(self, rank: int, *axes: Axis) -> tuple[int, ...]:
        """The ranks that differ from ``rank`` along ``axes`` only, itself among them, in ascending order."""
        here = self.coordinates(rank)
        return tuple(
            other
            for other in range(self.world_size)
            if all(at == here[axis] for axis, at in self.coordinates(other).items() if axis not in axes)
        )

    def groups(self, *axes: Axis) -> tuple[tuple[int, ...], ...]:
        """All groups along ``axes``; together they hold each rank once."""
        return tuple(dict.fromkeys(self.group(rank, *axes) for rank in range(self.world_size)))

    def loss_part(self, rank: int) -> tuple[int, ...]:
        """Which part of a batch the loss of the rank is summed over: its samples, and its part of the sequence."""
        return tuple(at for axis, at in self.coordinates(rank).items() if SPEC[axis].data or SPEC[axis].sequence)

    @property
    def loss_parts(self) -> int:
        """How many different :meth:`loss_part` there are: over so many ranks gradients are averaged."""
        return math.prod(self.degrees[axis] for axis in self.loss_axes)

    @property
    def loss_axes(self) -> tuple[Axis, ...]:
        """The axes along which losses add up."""
        return tuple(axis for axis in self.degrees if SPEC[axis].data or SPEC[axis].sequence)

    @property
    def data_axes(self) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.degrees if SPEC[axis].data)

    @property
    def model_axes(self) -> tuple[Axis, ...]:
        """The axes whose ranks work on the same samples together."""
        return tuple(axis for axis in self.degrees if not SPEC[axis].data)
