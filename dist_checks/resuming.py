"""Goes on with a run that was cut short: only what is missing of it is run."""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dist_checks import plan as planning
from dist_checks import session, stored
from dist_checks.axes import Setting
from dist_checks.deciding import decide
from dist_checks.jobs import jobs
from dist_checks.judging.judge import Judgement
from dist_checks.launching import submits, terminated_is_interrupted
from dist_checks.matrix import ConfigError, Matrix, load
from dist_checks.plan import Plan, Skipped
from dist_checks.progress import ShowProgress, silent
from dist_checks.refusals import Facts
from dist_checks.rung import Rung
from dist_checks.running import launch
from launch.base import Launcher


def resume(
    folder: Path, *, fault: str | None = None, show: ShowProgress = silent, launcher: Launcher | None = None
) -> session.Outcome:
    """Run what is missing, then what would decide what is to blame, and judge all of it.

    A rung is missing if it never ended, was lost or cancelled, or if its trace is not whole. ``launcher`` is one that
    is warm already. Raises ConfigError where ``folder`` holds no run, or another harness works in it.
    """
    inputs, matrix = session.read_inputs(folder), _matrix(folder)
    if launcher is None and submits(matrix):
        raise ConfigError("--resume: a run on Slurm is resumed inside of an allocation: salloc or sbatch this command")
    plan = _plan(inputs)
    with ExitStack() as stack:
        stack.enter_context(stored.alone(folder, new=False))
        missing = [rung for rung in plan.rungs if not stored.is_ended(folder, rung)]
        for rung in missing:
            shutil.rmtree(folder / "rungs" / rung.id, ignore_errors=True)
        progress = stack.enter_context(show(len(missing)))
        progress.note(f"{len(plan.rungs) - len(missing)} of {len(plan.rungs)} rungs have been run already")
        stack.enter_context(terminated_is_interrupted())
        at_work = _Lazy(matrix, fault, launcher, stack)

        def work(plan: Plan, rungs: Sequence[Rung]) -> None:
            launcher, _ = at_work.start()
            with session.writing():
                session.write_plan(folder, {**inputs, **plan.to_json()})
            launch(launcher, jobs(matrix, rungs, folder, fault), progress)

        def refuse(recipe: str, setting: Setting) -> str:
            launcher, facts = at_work.start()
            return planning.refusals(matrix, facts, session.largest(matrix, facts, launcher))(recipe, setting)

        def ladder() -> Judgement:
            if missing:
                work(plan, missing)
            return decide(plan, folder, budget=matrix.blame.budget, refuse=refuse, run=work)

        return session.finish(folder, ladder, progress)


class _Lazy:
    """A launcher that is started when there is something to run."""

    def __init__(self, matrix: Matrix, fault: str | None, launcher: Launcher | None, stack: ExitStack) -> None:
        self._matrix, self._fault, self._launcher, self._stack = matrix, fault, launcher, stack
        self._started: tuple[Launcher, dict[str, Facts]] | None = None

    def start(self) -> tuple[Launcher, dict[str, Facts]]:
        if self._started is None:
            if self._launcher is None:
                self._started = session.start(self._matrix, self._fault, self._stack)
            else:
                self._started = self._launcher, session.describe(self._matrix, self._launcher, self._fault)
        return self._started


def _matrix(folder: Path) -> Matrix:
    """The one that the run was planned from."""
    path = folder / "matrix.toml"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if session.read_inputs(folder).get("source") not in (None, zlib.crc32(text.encode())):
        raise ConfigError(f"{path}: this is not the matrix that the run was planned from")
    return load(path)


def _plan(inputs: Mapping[str, Any]) -> Plan:
    skipped = (
        Skipped(setting=Setting(skip["axes"]), reason=skip["reason"], recipe=skip.get("recipe", ""))
        for skip in inputs.get("skipped", ())
    )
    return Plan(rungs=tuple(map(Rung.from_json, inputs["rungs"])), skipped=tuple(skipped))
