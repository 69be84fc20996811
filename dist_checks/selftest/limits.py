"""What would have been seen: perturbations just above and just below the size that the report states."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_checks.selftest import ladder as running
from dist_checks.selftest.catalogue import SMALL
from dist_checks.selftest.grounds import Ground, Planting, judged, plant
from dist_checks.selftest.sharing import SharingLauncher

ABOVE = 1.1
"""Times the size from which on an error is seen, whatever is off already."""
BELOW = 0.75
"""Times the size up to which an error passes, whatever is off already. A sketch estimates a distance to some 10 %."""

FAULT = "mutant:scaled:"

OF = ("finest", "median")
"""The tensors of a rung of which the report states a size by name, but for the coarsest: where the limit is above the
gradient itself nothing is to be seen."""

NARROW = ("fp32", "bf16", "fp16")

LADDERS: tuple[dict[str, Any], ...] = (
    {"axes": {"dp_replicate": 3}},
    {"axes": {"dp_shard": 3}},
    {"axes": {"tp": 2}},
    {"axes": {"cp": 2}},
    {"axes": {"dp_replicate": 3}, "combine": {"include": [f"dp_replicate3+{name}" for name in NARROW]}},
    {"axes": {"dp_shard": 3}, "combine": {"include": [f"dp_shard3+{name}" for name in NARROW]}},
    {"axes": {"tp": 2}, "combine": {"include": [f"tp2+{name}" for name in NARROW]}},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One rung, one tensor, and whether what was planted around the stated size was seen as stated."""

    rung: str
    tensor: str
    scale: float
    """Any larger error of scale is seen."""
    passes: float
    """Any smaller one is within the limits."""
    above_seen: bool
    below_passed: bool

    @property
    def holds(self) -> bool:
        return self.above_seen and self.below_passed

    def __str__(self) -> str:
        above = "seen" if self.above_seen else "NOT seen"
        below = "passes" if self.below_passed else "does NOT pass"
        return (
            f"{self.rung}: {self.tensor} x (1 + {ABOVE:g} x {self.scale:.1e}) is {above}, "
            f"x (1 + {BELOW:g} x {self.passes:.1e}) {below}"
        )


def run(launcher: SharingLauncher, out: Path, *, note: Callable[[str], None]) -> list[Limit]:
    """Of each rung of several ranks, the tensors of which the report states a size."""
    stated: dict[tuple[str, str], dict[str, float]] = {}
    plantings: list[Planting] = []
    for number, ladder in enumerate(LADDERS):
        matrix = {
            "name": "limits",
            "steps": 2,
            "options": SMALL,
            "launch": {"cold_twin": False, "deadline": 120.0},
            "blame": {"budget": 0},
            **ladder,
            "combine": {"mode": "singles", **ladder.get("combine", {})},
        }
        folder = out / f"healthy{number}"
        report = running.report(matrix, folder, launcher)
        for rung in report["rungs"]:
            if rung["world_size"] > 1 and rung["sensitivity"]:
                for size in (rung["sensitivity"][name] for name in OF):
                    key = rung["id"], size["tensor"]
                    if key not in stated:
                        stated[key] = size
                        ground = Ground(rung["id"], matrix, rung["id"], folder)
                        plantings += around(ground, out, size)
    seen: dict[Path, str] = {}
    for done in plant(launcher, plantings):
        report = judged(done.folder)
        (rung,) = [each for each in report["rungs"] if each["id"] == done.ground.rung]
        seen[done.folder] = rung["checks"]["gradients"]
    found = []
    for (above, below), ((rung, tensor), size) in zip(pairs(plantings), stated.items(), strict=True):
        limit = Limit(
            rung=rung,
            tensor=tensor,
            scale=size["scale"],
            passes=size["passes"],
            above_seen=seen.get(above.folder) == "fail",
            below_passed=seen.get(below.folder) == "pass",
        )
        found.append(limit)
        note(str(limit))
    return found


def around(ground: Ground, out: Path, size: dict[str, Any]) -> list[Planting]:
    """Just above, and just below."""
    return [
        Planting(ground, out / f"{ground.rung}_{size['tensor']}_{word}", f"{FAULT}{1 + error!r}:{size['tensor']}")
        for word, error in (("above", ABOVE * size["scale"]), ("below", BELOW * size["passes"]))
    ]


def pairs(plantings: list[Planting]) -> Iterator[tuple[Planting, Planting]]:
    yield from zip(plantings[::2], plantings[1::2], strict=True)
