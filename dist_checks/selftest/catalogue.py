"""The catalogue of faults as the harness sees it, which never imports torch: asked of a process of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from dist_checks.axes import SPEC, Axis
from dist_checks.matrix import ConfigError
from launch.base import Job, Launcher, State

ENTRY = "dist_checks.worker.entry:catalogue"
FILE = "catalogue.json"

SMALL = {"layers": 2, "width": 16, "samples": 150}
"""Options of the built-in recipes: every part that a fault can break, and no more."""


PATIENT = {"cold_twin": False, "deadline": 300.0, "stall": 120.0}
"""How ladders are launched, unless a fault makes a rung hang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """One fault, and what must come of it."""

    id: str
    title: str
    source: str
    sets: tuple[tuple[str, ...], ...]
    """Each minimal set of axes that breaks; empty where something else is to blame."""
    check: str
    blamed: str
    planted_in: Mapping[str, Any] | None
    step: int | None
    hosts: int
    needs: tuple[str, ...]
    leads_to: Mapping[str, str] = field(default_factory=dict)
    """Symptoms in the table of triage, each with the suspect that must come first."""
    missing: tuple[str, ...] = field(default=())
    """Of what it needs, what this machine does not have, in words."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        fields = {name: data[name] for name in ("id", "title", "source", "check", "blamed", "planted_in", "step")}
        return cls(
            **fields,
            hosts=int(data["hosts"]),
            sets=tuple(tuple(sorted(each)) for each in data["axes"]),
            needs=tuple(data["needs"]),
            leads_to=dict(data["leads_to"]),
            missing=tuple(data["missing"]),
        )

    def matrix(self) -> dict[str, Any]:
        """The ladder that it is planted in."""
        given = dict(self.planted_in or _smallest(self.sets[0]))
        options = given.get("options", {})
        if given.get("recipe", "gpt") in ("gpt", "moe"):
            options = {**SMALL, **options}
        return {
            "name": "selftest",
            "steps": 2,
            "blame": {"budget": 4 if self.blamed == "race" else 2},
            **given,
            "launch": {**PATIENT, **given.get("launch", {})},
            "options": options,
        }

    def healthy(self) -> dict[str, Any]:
        """The same ladder as it is run without the fault, where nothing has to be taken for hung in seconds."""
        return {**self.matrix(), "launch": PATIENT, "blame": {"budget": 0}}

    @property
    def expected_sets(self) -> list[list[str]]:
        """Those whose axes are on the ladder."""
        on = set(self.matrix()["axes"])
        return sorted(list(each) for each in self.sets if on >= set(each))

    @property
    def expected_blame(self) -> list[str]:
        return blame_list(self.blamed, self.expected_sets)


def blame_list(blamed: str | None, sets: list[list[str]]) -> list[str]:
    """The axes that are named, sorted, or what else is to blame."""
    if blamed == "axis":
        return sorted({axis for each in sets for axis in each})
    return [blamed] if blamed else []


def _smallest(axes: tuple[str, ...]) -> dict[str, Any]:
    """A ladder of the axes and those that they need, at the first values that the built-in one tries, with another one
    that must stay right. Singles will do where one axis is to be named; where it takes several, each has to pass alone.
    """
    wanted = dict.fromkeys(Axis(axis) for axis in axes)
    for axis in tuple(wanted):
        wanted |= dict.fromkeys(SPEC[axis].needs)
    values = {
        axis.value: list(SPEC[axis].default) if SPEC[axis].takes == "choice" else [SPEC[axis].default[0]]
        for axis in wanted
    }
    other = Axis.DP_REPLICATE if Axis.ACCUM in wanted else Axis.ACCUM
    given = {"axes": {other.value: list(SPEC[other].default), **values}}
    mode = {"combine": {"mode": "singles"}} if len(axes) == 1 else {}
    return {**given, **mode, **({"recipe": "moe"} if Axis.EP in wanted else {})}


def read(launcher: Launcher, folder: Path) -> list[Planted]:
    """Every fault that there is."""
    job = Job(name="catalogue", folder=folder, world_size=1, entry=ENTRY, payload={"folder": str(folder)})
    (exit,) = launcher.run([job])
    if exit.state is not State.DONE:
        raise ConfigError(f"the catalogue of faults cannot be read: {exit.error.strip().splitlines()[-1]}")
    return [Planted.from_json(each) for each in json.loads((folder / FILE).read_text(encoding="utf-8"))]


def choose(faults: list[Planted], ids: str) -> list[Planted]:
    """Those of ``ids``, with commas between them; all where it is empty, none for ``none``. Raises ConfigError."""
    if ids == "none":
        return []
    known = {fault.id: fault for fault in faults}
    wanted = [id for id in ids.split(",") if id]
    for id in wanted:
        if id not in known:
            raise ConfigError(f"--faults: there is no fault '{id}', expected some of {', '.join(known)}")
    return [known[id] for id in wanted] or faults
