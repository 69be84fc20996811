"""Where something is planted in one rung: the ladder is run healthy once, and the rung again for each thing planted."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dist_checks import session, stored
from dist_checks.jobs import jobs
from dist_checks.judging.judge import report as judge
from dist_checks.matrix import Matrix, parse
from dist_checks.plan import Plan
from dist_checks.rung import Rung
from dist_checks.selftest.sharing import SharingLauncher
from launch.base import Job


@dataclass(frozen=True)
class Ground:
    """A ladder, and the rung of it that things are planted in."""

    name: str
    given: Mapping[str, Any]
    """The ladder's matrix."""
    rung: str
    folder: Path
    """Of the healthy ladder."""

    @cached_property
    def matrix(self) -> Matrix:
        return parse(self.given)

    @cached_property
    def inputs(self) -> dict[str, Any]:
        """What the healthy ladder's plan.json says."""
        return session.read_inputs(self.folder)

    @property
    def rungs(self) -> list[Rung]:
        return [Rung.from_json(each) for each in self.inputs["rungs"]]

    def job(self, folder: Path, fault: str, number: int) -> Job:
        """The rung with ``fault`` planted, in a run's folder of its own. Of the ladder there is what the rung is
        compared with and what blame needs, as it was run healthy."""
        (folder / "rungs").mkdir(parents=True)
        for file in ("matrix.toml", "env.json"):
            os.link(self.folder / file, folder / file)
        kept = Plan(rungs=tuple(self.rungs), skipped=()).only({self.rung}).rungs
        session.write_plan(folder, {**self.inputs, "rungs": [each.to_json() for each in kept]})
        (rung,) = [each for each in kept if each.id == self.rung]
        for other in kept:
            if other.id != rung.id:
                (folder / "rungs" / other.id).symlink_to((self.folder / "rungs" / other.id).absolute())
        [(job,)] = jobs(self.matrix, [rung], folder, fault)  # none of them resumes
        return replace(job, name=f"{rung.id}#{number}")  # what is stored of a job does not say what is planted

    def logs(self, folder: Path) -> Iterator[str]:
        """Lines that the ranks of the rung printed."""
        for log in sorted((folder / "rungs" / self.rung).glob("rank-*.log")):
            yield from log.read_text(encoding="utf-8", errors="replace").splitlines()


@dataclass(frozen=True)
class Planting:
    """One thing to be planted."""

    ground: Ground
    folder: Path
    fault: str


def plant(launcher: SharingLauncher, plantings: Iterable[Planting]) -> Iterator[Planting]:
    """All of them side by side, as far as slots allow; each when its rung has ended."""
    by_name = {}
    asked = []
    for number, each in enumerate(plantings):
        asked.append(each.ground.job(each.folder, each.fault, number))
        by_name[asked[-1].name] = each
    for exit in launcher.run(asked):
        yield by_name[exit.job]


def judged(folder: Path) -> dict[str, Any]:
    """The report of a run in which something was planted."""
    report = judge(folder)
    stored.write_json(folder / "report.json", report)
    return report
