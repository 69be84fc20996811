"""Plants faults one after the other, runs the same ladders healthy, and holds what was seen against what must be."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dist_checks.axes import Axis, Setting
from dist_checks.judging.triage import SYMPTOMS
from dist_checks.launching import PRELOAD, PRELOAD_DEEPSPEED, slots_of_cores
from dist_checks.matrix import ConfigError
from dist_checks.selftest import catalogue, innocents, ladder, secrecy
from dist_checks.selftest import healthy as rowing
from dist_checks.selftest import limits as limiting
from dist_checks.selftest import mutants as mutating
from dist_checks.selftest.catalogue import Planted, blame_list
from dist_checks.selftest.limits import Limit
from dist_checks.selftest.sharing import SharingLauncher
from launch.base import Job, Launcher
from launch.local import LocalLauncher

PER_HOST = 2
"""Ranks on each of the hosts that faults of a host are planted on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What was seen of one fault."""

    fault: Planted
    caught: bool = False
    check: str | None = None
    """The expected one where it failed in what is blamed; else the one that failed first."""
    blamed: list[str] = field(default_factory=list)
    sets: list[list[str]] = field(default_factory=list)
    step: int | None = None
    sentence: str = ""
    skipped: str = ""
    """Why it could not be planted here."""
    unled: list[str] = field(default_factory=list)
    """Symptoms that no finding names with the right suspect first."""
    told: list[str] = field(default_factory=list)
    """Files that say that a fault was planted: what is recognised is not detected."""
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        fault = self.fault
        right_step = fault.step is None or self.step == fault.step
        right = (
            self.caught
            and not self.told
            and not self.unled
            and self.check == fault.check
            and right_step
            and self.blamed == fault.expected_blame
        )
        return right and (fault.blamed != "axis" or self.sets == fault.expected_sets)

    def to_json(self) -> dict[str, Any]:
        fault = self.fault
        return {
            "id": fault.id,
            "title": fault.title,
            "source": fault.source,
            "planted_in": fault.matrix()["axes"],
            "expected_check": fault.check,
            "expected_blame": fault.expected_blame,
            "expected_step": fault.step,
            "caught": self.caught,
            "check": self.check,
            "blamed": self.blamed,
            "step": self.step,
            "sets": self.sets,
            "holds": self.holds,
            "skipped": self.skipped or None,
            "symptoms": list(fault.leads_to),
            "unled": self.unled,
            "told": self.told,
            "seconds": round(self.seconds, 1),
            "sentence": self.sentence,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """What the whole self-test says."""

    rows: tuple[Row, ...]
    clean_runs: int
    """Healthy rungs, each counted once however many ladders it is part of."""
    false_alarms: tuple[str, ...]
    """Healthy rungs that did not pass."""
    seconds: float
    mutants: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    each_mutant: tuple[Mapping[str, Any], ...] = ()
    """What was seen of each of them."""
    missed: tuple[str, ...] = ()
    """Mutants that changed something and were not caught."""
    limits: tuple[Limit, ...] = ()
    """Perturbations around the sizes that reports state."""
    healthy: Mapping[str, Any] = field(default_factory=dict)
    """Of the row of healthy rungs: how many, over how many seeds, and how near they came to the limits."""

    @property
    def holds(self) -> bool:
        faults = all(row.holds for row in self.rows if not row.skipped)
        return faults and not self.false_alarms and not self.missed and all(limit.holds for limit in self.limits)

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "holds": self.holds,
            "faults": [row.to_json() for row in self.rows],
            "clean_runs": self.clean_runs,
            "false_alarms": list(self.false_alarms),
            "mutants": {operator: dict(counts) for operator, counts in self.mutants.items()},
            "each_mutant": [dict(row) for row in self.each_mutant],
            "missed": list(self.missed),
            "limits": [asdict(limit) | {"holds": limit.holds} for limit in self.limits],
            "healthy": dict(self.healthy),
            "seconds": round(self.seconds, 1),
        }


def run(
    out: Path,
    *,
    faults: str = "",
    mutants: int | None = 0,
    healthy: int = 0,
    sizes: bool = False,
    seed: int = 0,
    note: Callable[[str], None] = lambda line: None,
) -> SelfTest:
    """Plant the ``faults`` (ids with commas between them; all by default; ``none``), then as many ``mutants`` at most
    (None: all of them), drawn by ``seed``; run as many ``healthy`` rungs, and with them what looks like a mistake and
    is none; with ``sizes`` plant perturbations around the sizes that reports state.

    Every run is left in ``out``. ``note`` is told what happens. Raises ConfigError for faults that do not exist.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        launchers: dict[tuple[int, bool], SharingLauncher] = {}

        def launcher(hosts: int = 1, deepspeed: bool = False) -> SharingLauncher:
            key = hosts, deepspeed
            if key not in launchers:
                launchers[key] = stack.enter_context(SharingLauncher(_local(hosts, deepspeed=deepspeed)))
            return launchers[key]

        chosen = catalogue.choose(catalogue.read(launcher(), out / "catalogue"), faults)
        rows = []
        clean = _Clean(out / "healthy")
        for number, fault in enumerate(chosen):
            rows.append(_try(fault, clean, launcher, out, number))
            note(line(rows[-1]))
        row = rowing.Healthy()
        if healthy:
            clean.alarms += innocents.run(launcher(1, True), out / "innocents", note=note)
            row = rowing.run(launcher(1, True), out / "row", rungs=healthy, deepspeed=not lacking(), note=note)
            clean.alarms += row.alarms
        limits = limiting.run(launcher(), out / "limits", note=note) if sizes else []
        found = mutating.Found()
        if mutants != 0:
            found = mutating.run(
                launcher(1, True), out / "mutants", most=mutants, seed=seed, missing=lacking(), note=note
            )
    return SelfTest(
        rows=tuple(rows),
        clean_runs=sum(launcher.healthy for launcher in launchers.values()),
        false_alarms=(*clean.alarms, *found.alarms),
        seconds=time.monotonic() - began,
        mutants={operator: score.to_json() for operator, score in sorted(found.scores.items())},
        each_mutant=tuple(found.rows),
        missed=tuple(found.missed),
        limits=tuple(limits),
        healthy=row.to_json() if healthy else {},
    )


def lacking() -> tuple[Axis, ...]:
    """Axes whose package is not installed here."""
    return () if find_spec("deepspeed") else (Axis.ZERO,)


def _local(hosts: int, *, deepspeed: bool) -> Launcher:
    def nodes(job: Job) -> Sequence[str]:
        return [f"n{rank // PER_HOST}" for rank in range(job.world_size)]

    # Every rank that needs DeepSpeed would import it for seconds.
    preload = (*PRELOAD, PRELOAD_DEEPSPEED) if deepspeed and not lacking() else PRELOAD
    return LocalLauncher(slots=slots_of_cores(), preload=preload, nodes=nodes if hosts > 1 else None)


class _Clean:
    """The ladders without any fault, each once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ladders: set[str] = set()
        self.alarms: list[str] = []

    def run(self, fault: Planted, launcher: SharingLauncher) -> None:
        matrix = fault.healthy()
        key = json.dumps(matrix, sort_keys=True)
        if key in self._ladders:
            return
        self._ladders.add(key)
        report = ladder.report(matrix, self._folder / f"{len(self._ladders):03d}", launcher)
        for rung in report["rungs"]:
            if rung["status"] not in ("pass", "skip"):
                self.alarms.append(f"{fault.id}: {rung['id']} is {rung['status']} without any fault")


def _try(
    fault: Planted, clean: _Clean, launcher: Callable[[int, bool], SharingLauncher], out: Path, number: int
) -> Row:
    """Its ladder healthy, then with the fault. Ranks are told a folder that does not say which fault it is; it is named
    so afterwards."""
    if fault.missing:
        return Row(fault=fault, skipped="; ".join(fault.missing))
    folder = out / "runs" / f"{number:03d}"
    try:
        placed = launcher(fault.hosts, "deepspeed" in fault.needs)
        clean.run(fault, placed)
        row = _plant(fault, placed, folder)
    except ConfigError as error:  # its own ladder is wrong: that is no reason to try no other
        return Row(fault=fault, sentence=str(error))
    (out / "planted").mkdir(exist_ok=True)
    folder.rename(out / "planted" / fault.id)
    return row


def _plant(fault: Planted, launcher: SharingLauncher, out: Path) -> Row:
    structural = [set(each) for each in fault.sets]
    launcher.harmless = lambda setting: _harmless(setting, structural)
    began = time.monotonic()
    try:
        report = ladder.report(fault.matrix(), out, launcher, fault=fault.id)
    finally:
        launcher.harmless = lambda setting: False
    told = secrecy.told(out, fault.id, fault.title)
    sets = [list(each) for each in sorted({tuple(broken["axes"]) for broken in report["broken"]})]
    blamed = blame_list(report["blamed"], sets) if report["status"] == "fail" else []
    failing = [f for f in report["findings"] if f["status"] == "fail"]
    first = {broken["check"] for broken in report["broken"]}
    expected = [f for f in failing if f["check"] == fault.check]
    # In the smallest rung that fails; where another check saw it first there, in any.
    blaming = [broken for broken in report["broken"] if broken["check"] == fault.check]
    at = min((f["step"] for f in blaming or expected if f["step"] is not None), default=None)
    return Row(
        fault=fault,
        caught=report["status"] == "fail",
        check=fault.check if expected else next(iter(sorted(first)), failing[0]["check"] if failing else None),
        blamed=blamed,
        sets=sets,
        step=at,
        sentence=report["sentence"],
        unled=[each for each, suspect in fault.leads_to.items() if not leads(failing, each, suspect)],
        told=told,
        seconds=time.monotonic() - began,
    )


def leads(failing: Iterable[Mapping[str, Any]], symptom: str, suspect: str) -> bool:
    """Whether one of the findings names the symptom, and the suspect before all others."""
    words = SYMPTOMS[symptom].suspects[suspect]
    return any(f.get("symptom") == symptom and f["suspects"][0] == words for f in failing)


def _harmless(setting: Setting, sets: list[set[str]]) -> bool:
    """On one device, with none of the fault's axes."""
    return not setting.structural and bool(sets) and not any(set(setting) & each for each in sets)


def line(row: Row) -> str:
    """One line of the table: fault, expected, seen."""
    fault = row.fault
    expected = f"{fault.check} {_step(fault.step)}-> {' + '.join(fault.expected_blame)}"
    if row.skipped:
        return f"{fault.id:<24} {expected:<44} SKIP {row.skipped}"
    seen = f"{row.check} {_step(row.step)}-> {' + '.join(row.blamed) or row.sentence}"
    if row.unled:
        seen += f"; not led to {', '.join(row.unled)}"
    if row.told:
        seen += f"; {row.told[0]} says that it was planted"
    return f"{fault.id:<24} {expected:<44} {'ok  ' if row.holds else 'NOT '} {seen}"


def _step(step: int | None) -> str:
    return "" if step is None else f"at {step} " if step >= 0 else "before "


def sentence(test: SelfTest) -> str:
    """The last line."""
    tried = [row for row in test.rows if not row.skipped]
    skipped = [row for row in test.rows if row.skipped]
    held = sum(row.holds for row in tried)
    words = f"{held} of {len(tried)} faults caught and blamed rightly, " if test.rows else ""
    words += f"{test.clean_runs} healthy rungs"
    words += f" with {len(test.false_alarms) or 'no'} false alarm{'s' * (len(test.false_alarms) != 1)}"
    if test.mutants:
        counts = [sum(each[kind] for each in test.mutants.values()) for kind in ("caught", "equivalent", "missed")]
        words += f", mutants: {counts[0]} caught, {counts[1]} equivalent, {counts[2]} missed"
    if test.limits:
        words += f", {sum(limit.holds for limit in test.limits)} of {len(test.limits)} stated sizes confirmed"
    if skipped:
        words += "; SKIP " + ", ".join(f"{row.fault.id} ({row.skipped})" for row in skipped)
    return f"{'PASS' if test.holds and (tried or test.mutants or test.limits or test.healthy) else 'FAIL'} {words}"
