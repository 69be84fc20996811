"""What would have been seen: perturbations just above and just below the size that the report states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_checks.selftest import ladder as running
from dist_checks.selftest.catalogue import SMALL
from dist_checks.selftest.sharing import SharingLauncher

ABOVE, BELOW = 1.25, 0.5
"""Times the stated size. What is there already may help or hinder, by as much as a healthy rung is off."""

LADDERS: tuple[dict[str, Any], ...] = (
    {"axes": {"dp_replicate": 3}},
    {"axes": {"dp_shard": 3}},
    {"axes": {"tp": 2}},
    {"axes": {"dp_replicate": 3, "precision": ["fp32", "bf16", "fp16"]}, "combine": {"mode": "pairs"}},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One rung, one tensor, and whether what was planted around the stated size was seen as stated."""

    rung: str
    tensor: str
    scale: float
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
            f"x (1 + {BELOW:g} x {self.scale:.1e}) {below}"
        )


def run(launcher: SharingLauncher, out: Path, *, note: Callable[[str], None]) -> list[Limit]:
    """The finest tensor of each rung of several ranks."""
    found = []
    for number, ladder in enumerate(LADDERS):
        matrix = {
            "name": "limits",
            "steps": 2,
            "options": SMALL,
            "launch": {"cold_twin": False, "deadline": 120.0},
            "blame": {"budget": 0},
            **ladder,
        }
        report = running.report(matrix, out / f"healthy{number}", launcher)
        for rung in report["rungs"]:
            if rung["world_size"] > 1 and rung["sensitivity"]:
                finest = rung["sensitivity"]["finest"]
                found.append(
                    _around(launcher, out / f"planted{number}", matrix, rung["id"], finest["tensor"], finest["scale"])
                )
                note(str(found[-1]))
    return found


def _around(
    launcher: SharingLauncher, out: Path, matrix: dict[str, Any], rung: str, tensor: str, scale: float
) -> Limit:
    seen = []
    for times in (ABOVE, BELOW):
        launcher.harmless = lambda setting: not setting.structural
        try:
            fault = f"mutant:scaled:{1 + times * scale!r}:{tensor}"
            folder = out / f"{rung}_{times:g}"
            report = running.report(matrix, folder, launcher, fault=fault, select=rung)
        finally:
            launcher.harmless = lambda setting: False
        (judged,) = [each for each in report["rungs"] if each["id"] == rung]
        seen.append(judged["checks"]["gradients"])
    return Limit(rung=rung, tensor=tensor, scale=scale, above_seen=seen[0] == "fail", below_passed=seen[1] == "pass")
