"""A run folder -> a judgement: reads traces, asks each check about each rung, and blames. Same input, same output."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dist_checks.axes import Axis
from dist_checks.judging import accepting, own
from dist_checks.judging.ablation import ablations, decide
from dist_checks.judging.accepting import Accepted
from dist_checks.judging.blame import blame
from dist_checks.judging.checks import ALONE, CHECKS, Check, asked, is_asked
from dist_checks.judging.deciding import deciding
from dist_checks.judging.health import health
from dist_checks.judging.late import FEWEST, Pair, late
from dist_checks.judging.measured import contributions, sensitivity, series
from dist_checks.judging.outcome import Outcome, rung_status, status_of
from dist_checks.judging.reading import TraceError, read
from dist_checks.judging.seen import Seen
from dist_checks.judging.verdict import Blamed, Finding, Status, Verdict
from dist_checks.judging.view import RungView, Writer
from dist_checks.rung import Role, Rung
from dist_checks.trace import checksum, parse

SCHEMA = 1
"""Of report.json."""

PLAN_SCHEMA = 1


class PlanError(ValueError):
    """plan.json is missing, damaged, or of another version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RungJudgement:
    """What was found out about one rung."""

    rung: Rung
    findings: tuple[Finding, ...]
    seconds: float | None
    accepted: tuple[Accepted, ...] = ()
    hosts: tuple[str, ...] = ()
    hung: bool = False
    """It did not end in time."""
    sensitivity: Mapping[str, Any] | None = None
    series: Mapping[str, Any] = field(default_factory=dict)
    contributions: Mapping[str, Any] | None = None
    health: Mapping[str, Any] | None = None
    """Of rung zero, what is drawn."""

    @property
    def status(self) -> Status:
        return status_of(self.findings)

    def checks(self) -> dict[str, str]:
        """Status of each check, in the order in which they were asked."""
        found: dict[str, list[Status]] = {}
        for finding in self.findings:
            found.setdefault(finding.check, []).append(finding.status)
        said = {name: str(rung_status(statuses)) for name, statuses in found.items()}
        muted = {accepted.finding.check: "accepted" for accepted in self.accepted}
        names = [name for name, _ in (*ALONE, *CHECKS) if name in said or name in muted]
        return {
            name: muted[name] if said.get(name, "pass") == "pass" and name in muted else said[name] for name in names
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What was found out about a run."""

    verdict: Verdict
    rungs: tuple[RungJudgement, ...]
    skipped: tuple[Mapping[str, Any], ...]
    """Combinations that the plan dropped: axes, and the reason."""
    matrix: Mapping[str, Any]
    """What of the matrix is shown: its name, recipe, number of steps."""
    deciding: tuple[Rung, ...] = ()
    """Rungs that were not run and would decide what is to blame."""
    ablations: tuple[Mapping[str, Any], ...] = ()
    """Of one setting changed on one device, over seeds."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for rung in self.rungs for finding in rung.findings)


def judge(run: Path) -> Judgement:
    """Judges a finished run, or what there is of an unfinished one. Raises PlanError where there is no plan."""
    plan = read_plan(run)
    rungs = [Rung.from_json(rung) for rung in plan["rungs"]]
    bench = _Bench(run, rungs, plan)
    # Squares of numbers that a fault has made huge are infinite, which fails; that is no mistake of the judge's.
    with np.errstate(over="ignore", invalid="ignore"):
        # Warm twins first: whether reruns repeat their bits decides what a cold one means.
        for rung in sorted(rungs, key=lambda rung: (rung.role is Role.TWIN, rung.cold)):
            bench.hear(rung)
    judged = tuple(bench.judged[rung.id] for rung in rungs)
    outcomes = [Outcome(rung=e.rung, findings=e.findings, hosts=e.hosts, hung=e.hung) for e in judged]
    changed = ablations((_rung(e) | {"seed": e.rung.seed} for e in judged), plan.get("custom", {}))
    return Judgement(
        verdict=decide(blame(outcomes), changed),
        rungs=judged,
        skipped=tuple(plan.get("skipped", ())),
        matrix=plan.get("matrix", {}),
        deciding=deciding(outcomes),
        ablations=tuple(changed),
    )


def read_plan(run: Path) -> Mapping[str, Any]:
    """plan.json. Raises PlanError."""
    path = run / "plan.json"
    try:
        plan: Mapping[str, Any] = parse(path.read_text(encoding="utf-8"))
        found = plan.get("schema")
    except (OSError, ValueError, AttributeError) as error:
        raise PlanError(f"{path} is no plan: {error}") from error
    if found != PLAN_SCHEMA:
        raise PlanError(f"{path} has schema {found!r}; this version reads schema {PLAN_SCHEMA}")
    if plan.get("checksum", checksum(plan)) != checksum(plan):
        raise PlanError(f"{path} is damaged: its checksum is wrong")
    if not isinstance(plan.get("rungs"), list):
        raise PlanError(f"{path} is no plan: it has no rungs")
    return plan


class _Bench:
    """Judges rung after rung; keeps the traces that others are compared with, and no others."""

    def __init__(self, run: Path, rungs: Sequence[Rung], plan: Mapping[str, Any]) -> None:
        self._folder = run / "rungs"
        self._rungs = {rung.id: rung for rung in rungs}
        self._plan = plan
        self._needed = {id for rung in rungs for id in (rung.reference, rung.truth, rung.twin_of) if id}
        self._kept: dict[tuple[str, int], Seen] = {}
        self._late: dict[str, Mapping[int, float]] = {}
        self.judged: dict[str, RungJudgement] = {}

    def _seen(self, id: str | None, phase: int = 0) -> Seen | None:
        """None for a rung that is not in the plan."""
        if id is None or id not in self._rungs:
            return None
        if (id, phase) in self._kept:
            return self._kept[id, phase]
        part = self._rungs[id].phases[phase]
        seen = Seen(part.rung, read(self._folder / id / part.name, part.rung.layout.world_size))
        if id in self._needed:
            self._kept[id, phase] = seen
        return seen

    def hear(self, rung: Rung) -> None:
        exits = self._exits(rung)
        seconds = sum(exit.get("seconds") or 0.0 for exit in exits if exit) if exits[0] else None
        hung = any(exit is not None and exit.get("state") == "timed_out" for exit in exits)
        try:
            views = self._views(rung, exits)
        except TraceError as error:
            finding = Finding(check="completes", rung=rung.id, status=Status.INCONCLUSIVE, message=str(error))
            self.judged[rung.id] = RungJudgement(rung=rung, findings=(finding,), seconds=seconds, hung=hung)
            return
        view = views[0]
        found = [
            _doubted(view, finding)
            for view in views
            for name, check in asked(rung)
            if is_asked(name, view)
            for finding in ask(name, own.shown(name, check), view)
        ]
        findings, accepted = accepting.sort(found, self._plan.get("accept", ()), str(self._plan.get("day", "")))
        self.judged[rung.id] = RungJudgement(
            rung=rung,
            findings=findings,
            accepted=accepted,
            seconds=seconds,
            hosts=tuple(sorted({host for view in views for host in view.trace.hosts.values()})),
            hung=hung,
            sensitivity=sensitivity(view),
            series=series(views),
            contributions=contributions(view),
            health=health(view),
        )

    def _exits(self, rung: Rung) -> list[Mapping[str, Any] | None]:
        """Of the phases of a rung, up to the first that did not go well."""
        exits: list[Mapping[str, Any] | None] = []
        for phase in rung.phases:
            exits.append(exit := _exit(self._folder / rung.id / phase.name))
            if exit is None or exit.get("state") != "done":
                break
        return exits

    def _views(self, rung: Rung, exits: Sequence[Mapping[str, Any] | None]) -> list[RungView]:
        """Of each phase, those of a rung that does not resume are one."""
        views: list[RungView] = []
        for phase, exit in zip(rung.phases, exits, strict=False):
            view = self._view(rung, phase.index, exit)
            if rung.restarts:
                view = replace(view, phase=phase, before=views[-1] if views else None)
            views.append(view)
        return views

    def _view(self, rung: Rung, phase: int, exit: Mapping[str, Any] | None) -> RungView:
        own = self._seen(rung.id, phase)
        assert own is not None
        named = rung.setting.get(Axis.CUSTOM)
        recipe = self._plan.get("also", {}).get(rung.recipe, {}) if rung.recipe else self._plan.get("recipe", {})
        custom = self._plan.get("custom", {}).get(named, {})
        return RungView(
            own=own,
            exit=exit,
            reference=self._seen(rung.reference),
            truth=self._seen(rung.truth),
            repeated=self._seen(rung.twin_of, phase),
            others_repeat=self._others_repeat(rung),
            pairs=self._pairs(rung),
            recipe={**recipe, **recipe.get("custom", {}).get(named, {})},
            train={**self._plan.get("train", {}), **custom.get("train", {})},
            custom=custom,
            single=self._plan.get("single", {}),
            expect=self._plan.get("expect", {}),
            command=f"dist-checks run {self._plan.get('given', '')}".strip(),
        )

    def _others_repeat(self, rung: Rung) -> bool | None:
        """Whether warm reruns gave the same bits: of the same rung, else of any."""
        warm = [j for j in self.judged.values() if j.rung.twin_of is not None and not j.rung.cold]
        mine = [j for j in warm if j.rung.twin_of == rung.twin_of] or warm
        told = [j.checks().get("twins") for j in mine]
        if str(Status.FAIL) in told:
            return False
        return True if str(Status.PASS) in told else None

    def _pairs(self, rung: Rung) -> list[Pair]:
        """What of each seed the planned rungs of the same setting are compared with, where curves are long enough."""
        out = []
        for other in self._rungs.values():
            same = other.setting == rung.setting and other.recipe == rung.recipe and other.role is rung.role
            theirs = str(other.reference or other.truth)
            if rung.steps >= FEWEST and same and other.cold == rung.cold and theirs in self._rungs:
                out.append(Pair(seed=other.seed, mine=self._late_of(other.id), theirs=self._late_of(theirs)))
        return out

    def _late_of(self, id: str) -> Mapping[int, float]:
        """Empty where the files cannot be read: the rung's own judgement says so."""
        if id not in self._late:
            try:
                seen = [self._seen(id, phase.index) for phase in self._rungs[id].phases]
                self._late[id] = {step: loss for each in seen if each for step, loss in late(each).items()}
            except TraceError:
                self._late[id] = {}
        return self._late[id]


def ask(name: str, check: Check, view: RungView) -> tuple[Finding, ...]:
    """The findings of one check; INCONCLUSIVE where it raises or says nothing: that is never a pass."""
    try:
        found = tuple(check(view))
    except Exception as error:
        return (Writer(view, name).unseen(f"the check broke: {type(error).__name__}: {error}"),)
    return found or (Writer(view, name).unseen("the check found nothing to say"),)


def _doubted(view: RungView, finding: Finding) -> Finding:
    """Where the job went well and files of it are damaged or gone, what looks like a fault may be due to that."""
    trace, state = view.trace, (view.exit or {}).get("state")
    damaged = state == "done" and trace.ranks and (trace.missing or trace.problems)
    if finding.status is not Status.FAIL or finding.blames is Blamed.LAUNCHER or not damaged:
        return finding
    message = f"it may be due to a damaged trace ({trace.cut}): {finding.message}"
    return replace(finding, status=Status.INCONCLUSIVE, message=message)


def _exit(folder: Path) -> Mapping[str, Any] | None:
    try:
        found = parse((folder / "exit.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or "state" not in found or found.get("checksum", checksum(found)) != checksum(found):
        return None
    return found


def report(run: Path) -> dict[str, Any]:
    """report.json, the only source of every page: strict JSON, so NaN is the string "nan"."""
    return document(judge(run))


def document(judgement: Judgement) -> dict[str, Any]:
    """The contents of report.json."""
    verdict = judgement.verdict
    out = {
        "schema": SCHEMA,
        "status": str(verdict.status),
        "sentence": verdict.sentence,
        "blamed": verdict.blamed.value if verdict.blamed else None,
        "broken": [broken.to_json() for broken in verdict.broken],
        "rungs": [_rung(each) for each in judgement.rungs],
        "findings": [finding.to_json() for finding in judgement.findings],
        "accepted": [accepted.to_json() for rung in judgement.rungs for accepted in rung.accepted],
        "skipped": [
            {key: skip[key] for key in ("axes", "reason", "recipe") if key in skip} for skip in judgement.skipped
        ],
        "matrix": dict(judgement.matrix),
    }
    if judgement.ablations:
        out["ablations"] = list(judgement.ablations)
    strict = _strict(out)
    assert isinstance(strict, dict)
    return strict


def _rung(each: RungJudgement) -> dict[str, Any]:
    return {
        "id": each.rung.id,
        "role": each.rung.role.value,
        "axes": each.rung.setting.to_json(),
        **({"recipe": each.rung.recipe} if each.rung.recipe else {}),
        "precision": each.rung.precision,
        "world_size": each.rung.layout.world_size,
        "planned": each.rung.planned,
        "status": str(each.status),
        "reference": each.rung.reference,
        "seconds": each.seconds,
        "checks": each.checks(),
        "sensitivity": each.sensitivity,
        "series": each.series,
        "contributions": each.contributions,
        **({"health": each.health} if each.health else {}),
    }


def _strict(value: Any) -> Any:
    """Numbers that JSON does not have become strings: "nan", "inf", "-inf"."""
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
