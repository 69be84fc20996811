"""A matrix in a pytest session: planned when it is collected, run once when its first result is asked for."""

from __future__ import annotations

import fcntl
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from dist_checks import session, stored
from dist_checks.axes import Layout, Value
from dist_checks.launching import submits
from dist_checks.matrix import ConfigError, Matrix, load
from dist_checks.plan import Plan
from dist_checks.report import lines, words
from dist_checks.report.read import read
from dist_checks.report.view import Report
from dist_checks.rung import Rung
from launch.base import Launcher, LaunchError

MOST = 3
"""Findings of one check that are told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RungResult:
    """What came of one rung: the fixture ``dist_checks_rung``."""

    name: str
    axes: Mapping[str, Value]
    """Those that are on."""
    layout: Layout
    world_size: int
    status: str
    """``pass``, ``skip``, ``inconclusive`` or ``fail``: the worst of its checks."""
    checks: Mapping[str, str]
    findings: tuple[Mapping[str, Any], ...]
    """As report.json has them."""
    folder: Path
    """With the traces and logs of its ranks."""
    sentence: str
    """The verdict on the whole matrix."""


class Ladder:
    """Of one matrix file. Under pytest-xdist the first worker that asks runs it; the others read what came of it."""

    def __init__(self, path: Path, config: pytest.Config) -> None:
        self.path, self._config = path, config
        self.wanted: set[str] = set()
        """Rungs of which a selected test wants a result."""
        self._stack = ExitStack()
        self._launcher: Launcher | None = None
        self._error: ConfigError | LaunchError | None = None
        config.add_cleanup(self._stack.close)

    @cached_property
    def matrix(self) -> Matrix:
        """Raises ConfigError."""
        matrix = load(self.path)
        if submits(matrix):
            raise ConfigError(
                f"{self.path.name}: launch.launcher: slurm from outside: run pytest inside the allocation"
            )
        return matrix

    @cached_property
    def plan(self) -> Plan:
        """Starts one process, which describes the recipe. Raises ConfigError."""
        self._launcher, facts = session.start(self.matrix, None, self._stack)
        return session.planned(self.matrix, facts, self._launcher)

    def rung(self, id: str) -> Rung:
        return next(rung for rung in self.plan.rungs if rung.id == id)

    @property
    def report(self) -> Mapping[str, Any]:
        """report.json. Raises, every time, what went wrong when it was run."""
        if self._error is not None:
            raise self._error
        try:
            return self._report
        except (ConfigError, LaunchError) as error:
            self._error = error
            raise

    def prepare(self) -> None:
        """Runs it, where that has not been done; what goes wrong is told to those who ask for results."""
        with suppress(ConfigError, LaunchError):
            _ = self.report

    @cached_property
    def _report(self) -> Mapping[str, Any]:
        with self._alone():
            if (self.folder / "report.json").exists():
                return stored.read_report(self.folder)
            given = os.path.relpath(self.path)
            source = self.path.read_text(encoding="utf-8")
            outcome = session.run(
                self.matrix,
                out=self.folder,
                select=self.wanted & {rung.id for rung in self.plan.rungs},
                source=source,
                given=given,
                launcher=self._launcher,
            )
            if outcome.interrupted:
                raise KeyboardInterrupt
            return outcome.report

    @cached_property
    def folder(self) -> Path:
        """Of the run: the same for all workers."""
        base: Path = self._config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # set by tmp_path
        shared = base.parent if hasattr(self._config, "workerinput") else base
        return shared / f"{self.path.stem}-{zlib.crc32(str(self.path).encode()):08x}"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self.folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @cached_property
    def view(self) -> Report:
        """The report as pages read it."""
        return read(self.report)

    def told(self, rung: str, check: str) -> tuple[str, str]:
        """(status, what is to be said) of a check of a rung."""
        status = self.result(rung).checks.get(check, "")
        found = [f for f in self.view.findings if (f.rung, f.check) == (rung, check)]
        of_status = [finding for finding in found if finding.status == status]
        if status in ("fail", "inconclusive"):
            body = ["\n     ".join(lines.three(finding, self.view)) for finding in of_status[:MOST]]
            more = len(of_status) - MOST
            return status, "\n".join([*body, *([f"and {words.count(more, 'more finding')}"] if more > 0 else [])])
        if not status:
            return "skip", f"{check} has nothing to say about {rung}"
        return status, of_status[0].message if of_status else ""

    def result(self, id: str) -> RungResult:
        rung = self.rung(id)
        found: list[Mapping[str, Any]] = [each for each in self.report["rungs"] if each["id"] == id]
        told = found[0] if found else {}
        return RungResult(
            name=id,
            axes=rung.setting.to_json(),
            layout=rung.layout,
            world_size=rung.layout.world_size,
            status=str(told.get("status", "inconclusive")),
            checks=told.get("checks", {}),
            findings=tuple(finding for finding in self.report["findings"] if finding["rung"] == id),
            folder=self.folder / "rungs" / id,
            sentence=str(self.report["sentence"]),
        )

    @cached_property
    def verdict(self) -> str:
        """For the summary: the sentence, what it rests on, and where the page is; '' where nothing was run."""
        if self._error is not None or "_report" not in self.__dict__:
            return ""
        view = self.view
        out = [f"{os.path.relpath(self.path)}: {view.sentence}"]
        for broken in view.broken:
            why = broken.explanation.partition("\n")[0]
            out.append(f"  {lines.axes(broken)}: {broken.check} of {broken.rungs[0]}: {why}")
        if view.blamed and view.blamed != "axis":
            out.append(f"  {words.BLAMED.get(view.blamed, view.blamed)}")
        if view.skipped:
            out.append(f"  left out: {words.count(len(view.skipped), 'combination')}")
        return "\n".join([*out, f"  {self.folder / 'report.html'}"])
