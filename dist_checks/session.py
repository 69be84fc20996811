"""Plan, launch, judge, report: the only place that knows all four."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dist_checks import plan as planning
from dist_checks import stored, submitting
from dist_checks.axes import Axis, Setting
from dist_checks.cost import device_hours
from dist_checks.deciding import decide
from dist_checks.jobs import DESCRIBE, jobs, payload
from dist_checks.judging.judge import Judgement, PlanError, document, read_plan
from dist_checks.judging.judge import report as judge_report
from dist_checks.judging.verdict import ExitCode, Status
from dist_checks.launching import PRELOAD as PRELOAD
from dist_checks.launching import largest_world, nodes_needed, open_launcher, submits, terminated_is_interrupted
from dist_checks.matrix import ConfigError, Matrix, parse
from dist_checks.plan import Plan
from dist_checks.progress import Progress, ShowProgress, silent
from dist_checks.refusals import Facts
from dist_checks.report import github, write_pages
from dist_checks.run_folder import environment, new_folder
from dist_checks.rung import Rung
from dist_checks.running import launch
from dist_checks.selection import choose
from dist_checks.starting import check_script, check_start
from dist_checks.submitting import hand_over
from dist_checks.trace import checksum
from launch import scratch
from launch.base import Exit, Job, Launcher, LaunchError, State
from launch.cluster import ClusterLauncher


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    report: dict[str, Any]
    folder: Path
    interrupted: bool = False

    def exit_code(self, *, strict: bool = False) -> ExitCode:
        if self.interrupted:
            return ExitCode.INTERRUPTED
        return ExitCode.of(Status.parse(self.report["status"]), strict=strict)


def run(
    matrix: Matrix | Mapping[str, Any],
    *,
    out: Path | None = None,
    select: str | Collection[str] = "",
    failed_in: Path | None = None,
    fault: str | None = None,
    show: ShowProgress = silent,
    source: str | None = None,
    given: str | None = None,
    launcher: Launcher | None = None,
) -> Outcome:
    """Run the ladder of a matrix and judge it. Results are in ``out``, by default ``runs/<time>_<name>``.

    ``select`` is an expression like pytest's ``-k``, or ids of rungs; ``failed_in`` a run whose failed rungs are run
    again; ``fault`` the id of a fault to plant on the ranks; ``source`` the text to keep as matrix.toml; ``given`` how
    the command line named the matrix; ``launcher`` one that is warm already. Raises ConfigError for what the user can
    put right. Interrupted by Ctrl-C, what had finished is judged.
    """
    matrix = parse(matrix)
    if matrix.command and fault:
        raise ConfigError("--fault: bugs are planted in the ranks of a recipe, not in a script")
    if launcher is None and submits(matrix):
        if not isinstance(select, str):
            raise ConfigError("launch.launcher: rungs are chosen by id where they run: be inside the allocation")
        said: list[str] = []
        asked: dict[str, Any] = {"select": select, "failed_in": failed_in, "fault": fault}
        folder = submit(matrix, out=out, **asked, source=source, given=given, note=said.append)
        return follow(folder, matrix, show, said)
    with ExitStack() as stack:
        if launcher is None:
            launcher, facts = start(matrix, fault, stack)
        else:
            facts = describe(matrix, launcher, fault)
        plan = _choose(planned(matrix, facts, launcher), select, failed_in)
        cost = afford(matrix, plan, launcher)
        folder = new_folder(matrix.name, out)
        stack.enter_context(stored.alone(folder, new=True))
        progress = stack.enter_context(show(len(plan.rungs)))
        if matrix.launch.launcher != "local":
            progress.note(cost)
        stack.enter_context(terminated_is_interrupted())

        def work(plan: Plan, rungs: Sequence[Rung]) -> None:
            with writing():
                _write_inputs(folder, matrix, plan, facts, source, given or str(folder / "matrix.toml"))
            if matrix.command and rungs[0] == plan.rungs[0]:
                launch(launcher, jobs(matrix, rungs[:1], folder), progress, lambda exit: _started(matrix, folder, exit))
                rungs = rungs[1:]
            launch(launcher, jobs(matrix, rungs, folder, fault), progress)

        def ladder() -> Judgement:
            work(plan, plan.rungs)
            refuse = planning.refusals(matrix, facts, largest(matrix, facts, launcher))
            return decide(plan, folder, budget=matrix.blame.budget, refuse=refuse, run=work)

        return finish(folder, ladder, progress)


def _started(matrix: Matrix, folder: Path, exit: Exit) -> None:
    assert matrix.command is not None
    check_start(matrix.command, exit, folder / "rungs" / exit.job)


def finish(folder: Path, ladder: Callable[[], Judgement], progress: Progress) -> Outcome:
    """What came of a ladder. What Ctrl-C or a full disk has cut short is judged as far as it got."""
    interrupted = False
    try:
        judgement = ladder()
    except KeyboardInterrupt:
        interrupted = True
        progress.note("interrupted: judging what had finished")
    except OSError as error:
        progress.note(f"stopped, judging what had finished: {error.filename}: {error.strerror}")
    except LaunchError as error:
        progress.note(f"stopped, judging what had finished: {error}")
    else:
        return Outcome(report=write_report(folder, document(judgement)), folder=folder)
    return Outcome(report=judge(folder), folder=folder, interrupted=interrupted)


@contextmanager
def writing() -> Iterator[None]:
    """A disk that is full, or a folder that is read-only, is for the user to put right."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be written: {error.strerror}") from None


def read_inputs(folder: Path) -> dict[str, Any]:
    """What plan.json says. Raises ConfigError where ``folder`` holds no run, or its plan is damaged."""
    if not (folder / "plan.json").is_file():
        raise ConfigError(f"{folder}: this is no run folder: it has no plan.json")
    try:
        return dict(read_plan(folder))
    except PlanError as error:
        raise ConfigError(str(error)) from None


def submit(
    matrix: Matrix,
    *,
    out: Path | None = None,
    select: str = "",
    failed_in: Path | None = None,
    fault: str | None = None,
    source: str | None = None,
    given: str | None = None,
    note: Callable[[str], None] = lambda words: None,
) -> Path:
    """Hand the run over to Slurm; returns the run's folder, which nodes have to see. Raises ConfigError.

    It is planned here first, so that a mistake is told now and not when the job has its turn. ``note`` is told what it
    is going to cost.
    """
    with ExitStack() as stack:
        launcher, facts = start(matrix, fault, stack)
        plan = _choose(planned(matrix, facts, launcher), select, failed_in)
    note(afford(matrix, plan))
    folder = new_folder(matrix.name, out)
    _write_inputs(folder, matrix, plan, facts, source, given or str(folder / "matrix.toml"))
    words = ["--launcher", "slurm"]
    if failed_in:
        words += ["--failed-in", str(failed_in.absolute().resolve())]
    words += [*(["-k", select] if select else []), *(["--fault", fault] if fault else [])]
    hand_over(matrix, folder, max(rung.devices for rung in plan.rungs), words)
    return folder


def follow(folder: Path, matrix: Matrix, show: ShowProgress = silent, notes: Sequence[str] = ()) -> Outcome:
    """Wait for a run that was submitted, and judge it. Ctrl-C cancels the job and judges what had finished."""
    interrupted = False
    with show(len(stored.read_json(folder / "plan.json")["rungs"])) as progress:
        for words in notes:
            progress.note(words)
        try:
            submitting.follow(folder, matrix, progress)
        except KeyboardInterrupt:
            interrupted = True
    return Outcome(report=judge(folder), folder=folder, interrupted=interrupted)


def plan(matrix: Matrix | Mapping[str, Any], *, select: str = "") -> Plan:
    """What :func:`run` would run. Starts one process, which describes the recipe."""
    matrix = parse(matrix)
    with ExitStack() as stack:
        launcher, facts = start(matrix, None, stack)
        return _choose(planned(matrix, facts, launcher), select, None)


def afford(matrix: Matrix, plan: Plan, launcher: Launcher | None = None) -> str:
    """Where it is going to run and what that costs, in a line. Raises ConfigError where it is more than allowed.

    ``launcher`` is one that knows its nodes; else they are what the plan needs.
    """
    worlds = {rung.id: rung.devices for rung in plan.rungs}
    hours, most = device_hours(worlds, last_seconds()), matrix.launch.max_device_hours
    nodes, each = nodes_needed(matrix, max(worlds.values()))
    where = f"{nodes} node{'s' * (nodes > 1)} with {each} device{'s' * (each > 1)} each"
    if isinstance(launcher, ClusterLauncher):
        there = launcher.slots
        named = ", ".join([*list(there)[:4], *([f"{len(there) - 4} more"] if len(there) > 4 else [])])
        where = f"{len(there)} node{'s' * (len(there) > 1)} ({named}) with {sum(there.values())} devices together"
    elif matrix.launch.launcher == "local":
        where = "this machine"
    said = f"{matrix.launch.launcher}: {where}, about {hours:.3f} device-hours"
    if most is not None and hours > most:
        raise ConfigError(f"launch.max_device_hours: {said}, more than {most:g}")
    return said


def judge(folder: Path) -> dict[str, Any]:
    """Judge a stored run and write its report and pages again. Raises ConfigError where ``folder`` holds no run.

    Where it was submitted to Slurm, what became of the job stands in the report.
    """
    submitting.settle(folder)
    read_inputs(folder)
    return write_report(folder, judge_report(folder))


def write_report(folder: Path, report: dict[str, Any]) -> dict[str, Any]:
    """With its pages."""
    report["environment"] = _stored_environment(folder)
    with writing():
        stored.write_json(folder / "report.json", report)
        write_pages(report, folder)
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            github.write(report, Path(summary))
    return report


def _stored_environment(folder: Path) -> dict[str, Any]:
    """Shown, never used to judge: it may be missing or damaged."""
    try:
        return stored.read_json(folder / "env.json")
    except ConfigError:
        return {}


def pages(folder: Path) -> dict[str, Any]:
    """Write the pages of a judged run again. Raises ConfigError where it has no report."""
    report = stored.read_report(folder)
    with writing():
        write_pages(report, folder)
    return report


def last_seconds(run: Path = Path("runs/latest")) -> dict[str, float]:
    """What each rung took in the last run, by id; empty where there was none."""
    try:
        rungs = stored.read_report(run)["rungs"]
        return {rung["id"]: rung["seconds"] for rung in rungs if rung["seconds"] is not None}
    except (ConfigError, KeyError, TypeError):
        return {}


def describe(matrix: Matrix, launcher: Launcher, fault: str | None = None) -> dict[str, Facts]:
    """What each recipe and the devices are, asked in a process of its own: this one never imports torch.

    Raises ConfigError where a recipe cannot be used, or there is no such fault.
    """
    out = {}
    for label, ladder in matrix.ladders.items():
        try:
            out[label] = _describe(ladder, launcher, fault)
        except ConfigError as error:
            raise ConfigError(matrix.key(label) + str(error)) from None
    return out


def _describe(matrix: Matrix, launcher: Launcher, fault: str | None) -> Facts:
    with scratch.held("dist-checks-") as folder:
        job = Job(
            name="describe",
            folder=folder,
            world_size=1,
            entry=DESCRIBE,
            payload={
                **payload(matrix, Setting(), folder, fault),
                "custom": {
                    str(name): matrix.options | matrix.custom[str(name)].options
                    for name in matrix.axes.get(Axis.CUSTOM, ())
                },
            },
            deadline=matrix.launch.deadline,
        )
        try:
            (exit,) = launcher.run([job])
        except LaunchError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ConfigError(f"launch.launcher: '{matrix.launch.launcher}' cannot start ranks: {reason}") from None
        if exit.state is not State.DONE:
            raise ConfigError(_reason(exit))
        return Facts.from_json(stored.read_json(folder / "recipe.json"))


def _reason(exit: Exit) -> str:
    """Of a process that ended with an error: the message alone where it is written for the user."""
    lines = exit.error.strip().splitlines() or [str(exit.state)]
    return lines[-1].removeprefix("ValueError: ")


def planned(matrix: Matrix, facts: Mapping[str, Facts], launcher: Launcher) -> Plan:
    """The rungs of a matrix whose recipes have been described."""
    return planning.make(matrix, facts, largest(matrix, facts, launcher))


def largest(matrix: Matrix, facts: Mapping[str, Facts], launcher: Launcher) -> int:
    return largest_world(matrix, launcher, facts[""].accelerators)


def _choose(plan: Plan, select: str | Collection[str], failed_in: Path | None) -> Plan:
    ids = [rung.id for rung in plan.rungs]
    chosen = set(ids) if isinstance(select, str) else set(select)
    if select and isinstance(select, str):
        try:
            chosen = choose(select, ids)
        except ValueError as error:
            raise ConfigError(f"-k: {error}") from None
        if not chosen:
            raise ConfigError(f"-k: '{select}' matches none of the {len(ids)} rungs, see 'dist-checks plan'")
    if failed_in:
        last = stored.read_report(failed_in)
        chosen &= {rung["id"] for rung in last.get("rungs", ()) if rung["status"] in ("fail", "inconclusive")}
        if not chosen:
            raise ConfigError(f"--failed: no rung of this plan failed in {failed_in}")
    return plan if chosen == set(ids) else plan.only(chosen)


def start(matrix: Matrix, fault: str | None, stack: ExitStack) -> tuple[Launcher, dict[str, Facts]]:
    """A launcher for the devices that a first process of it has found."""
    check_script(matrix)
    launcher = stack.enter_context(open_launcher(matrix))
    facts = describe(matrix, launcher, fault)
    accelerators = facts[""].accelerators
    if accelerators and isinstance(launcher, ClusterLauncher):
        launcher.use_devices(accelerators)
    elif accelerators:
        launcher.close()
        launcher = stack.enter_context(open_launcher(matrix, accelerators))
    return launcher, facts


def write_plan(folder: Path, inputs: Mapping[str, Any]) -> None:
    stored.write_json(folder / "plan.json", {**inputs, "checksum": checksum(inputs)})


def _write_inputs(
    folder: Path, matrix: Matrix, plan: Plan, facts: Mapping[str, Facts], source: str | None, given: str
) -> None:
    text = source or matrix.to_toml()
    (folder / "matrix.toml").write_text(text, encoding="utf-8")
    inputs = {
        "schema": planning.SCHEMA,
        **plan.to_json(),
        "matrix": {
            "name": matrix.name,
            "recipe": matrix.trained,
            "exact": matrix.exact,
            "steps": matrix.steps,
        },
        "train": {"shuffle": matrix.command.shuffle} if matrix.command else asdict(matrix.train),
        "single": asdict(matrix.single),
        "expect": asdict(matrix.expect),
        "custom": {name: asdict(table) for name, table in matrix.custom.items()},
        "recipe": dict(facts[""].description),
        "also": {label: dict(each.description) for label, each in facts.items() if label},
        "given": given,
        "day": time.strftime("%Y-%m-%d"),
        "accept": [asdict(accepted) | {"until": accepted.until.isoformat()} for accepted in matrix.accept],
        "source": zlib.crc32(text.encode()),
    }
    write_plan(folder, inputs)
    stored.write_json(folder / "env.json", environment(matrix))
