"""One training run of the ladder, as the plan wrote it down and as ranks and judge read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from dist_checks import restarts
from dist_checks.axes import Axis, Layout, Setting


class Role(StrEnum):
    """Why a rung is on the ladder."""

    SINGLE = "single"  # one process, structural axes off: what the others are compared with
    RUNG = "rung"  # what the user asked for, or a neighbour of it that blame needs
    TWIN = "twin"  # the same as another rung, run again
    OVERFIT = "overfit"  # rung zero: one device, one batch over and over, which has to be memorised
    LEARN = "learn"  # rung zero: one device, model and data examined first, then trained long enough for a curve


ZERO = (Role.OVERFIT, Role.LEARN)
"""Roles of rung zero: compared with nothing, and nothing is compared with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The steps of a rung that one set of processes runs: all of them, unless the rung resumes."""

    index: int
    rung: Rung
    """With the layout of this phase."""
    start: int
    """The first step."""
    stop: int
    """The first that it does not run."""

    @property
    def name(self) -> str:
        """Of its job and its folder: empty where the rung has one phase only."""
        return f"phase{self.index}" if self.rung.restarts else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """``id`` is the setting's name, with ``@moe`` for a further recipe, ``@seed1`` for further seeds, and ``@again`` or
    ``@cold`` for twins."""

    id: str
    role: Role
    setting: Setting
    precision: str
    """What is computed with: the value of the precision axis, or what off means in this matrix."""
    seed: int
    steps: int
    reference: str | None = None
    """Id of the single with the same numerics; None for a single, which is compared with the truth only."""
    truth: str | None = None
    """Id of the float64 single; None for that one itself."""
    twin_of: str | None = None
    cold: bool = False
    """Started by torch elastic in new processes, instead of forked from a warm server."""
    recipe: str = ""
    """What the matrix calls the recipe, where it is not the first one. Rungs are only compared within a recipe."""
    planned: bool = True
    """False where only blame needs it: the user did not ask for it."""
    restarts: tuple[int, ...] = ()
    """The steps before which all processes end and new ones go on."""

    @property
    def layout(self) -> Layout:
        return Layout(self.setting)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """What runs one after the other."""
        starts, stops = (0, *self.restarts), (*self.restarts, self.steps)
        settings = restarts.settings(self.setting, len(starts))
        return tuple(
            Phase(index=index, rung=replace(self, setting=setting), start=start, stop=stop)
            for index, (setting, start, stop) in enumerate(zip(settings, starts, stops, strict=True))
        )

    @property
    def devices(self) -> int:
        """Of the phase that needs the most."""
        return max(phase.rung.layout.world_size for phase in self.phases)

    @property
    def is_zero(self) -> bool:
        """Run to see whether the recipe is healthy on one device."""
        return self.role in ZERO

    @property
    def exact(self) -> bool:
        """Computed in float64: right and wrong are ten orders of magnitude apart."""
        return self.precision == "fp64"

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "role": self.role.value,
            "setting": self.setting.to_json(),
            "restarts": list(self.restarts),
            "world_size": self.layout.world_size,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Rung:
        fields = {name: value for name, value in data.items() if name != "world_size"}  # that one follows
        setting = Setting({Axis(axis): value for axis, value in fields.pop("setting").items()})
        restarts = tuple(fields.pop("restarts", ()))
        return cls(setting=setting, role=Role(fields.pop("role")), restarts=restarts, **fields)
