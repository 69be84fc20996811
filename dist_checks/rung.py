"""One training run of the ladder, as the plan wrote it down and as ranks and judge read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from dist_checks.axes import Axis, Layout, Setting


class Role(StrEnum):
    """Why a rung is on the ladder."""

    SINGLE = "single"  # one process, structural axes off: what the others are compared with
    RUNG = "rung"  # what the user asked for, or a neighbour of it that blame needs
    TWIN = "twin"  # the same as another rung, run again


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

    @property
    def layout(self) -> Layout:
        return Layout(self.setting)

    @property
    def exact(self) -> bool:
        """Computed in float64: right and wrong are ten orders of magnitude apart."""
        return self.precision == "fp64"

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "role": self.role.value,
            "setting": self.setting.to_json(),
            "world_size": self.layout.world_size,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Rung:
        fields = {name: value for name, value in data.items() if name != "world_size"}  # that one follows
        setting = Setting({Axis(axis): value for axis, value in fields.pop("setting").items()})
        return cls(setting=setting, role=Role(fields.pop("role")), **fields)
