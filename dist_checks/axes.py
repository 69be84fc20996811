"""A setting of the axes, and the grid of ranks that it needs. No torch here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from dist_checks.specs import CUSTOM_NAME, PRECISIONS, SPEC, SPECS, ZERO_STAGES, Axis, Spec, Value

__all__ = [
    "CUSTOM_NAME",
    "PRECISIONS",
    "SPEC",
    "SPECS",
    "ZERO_STAGES",
    "Axis",
    "Layout",
    "Setting",
    "Spec",
    "Value",
]


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

    def lines(self, axis: Axis) -> tuple[tuple[int, ...], ...]:
        """The groups that an axis works in: its own, or those of the axis that it needs (sp in tp, zero in replicas);
        of one that needs none, such as accum, those of every axis that is on."""
        if self.degrees.get(axis, 1) > 1:
            return self.groups(axis)
        along = [each for each in SPEC[axis].needs if self.degrees.get(each, 1) > 1]
        along = along or [each for each, degree in self.degrees.items() if degree > 1]
        return tuple(dict.fromkeys(group for each in along for group in self.groups(each)))

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
