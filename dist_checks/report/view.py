"""What the pages show: report.json, typed, with every text already made visible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from dist_checks.report import words

ZERO = ("overfit", "learn")
"""Roles of rung zero."""
ALONE = ("single", *ZERO)
"""Roles of rungs on one device that are examined for themselves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a check saw, or an entry of the accepted ones (then with ``reason`` and ``until``)."""

    key: str
    """Its anchor on the page."""
    check: str
    rung: str
    status: str
    step: str
    tensor: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    observed: float | None
    allowed: float | None
    scale: float | None
    cosine: float | None
    truth_ratio: float | None
    message: str
    explanation: str
    residual: tuple[float | None, float | None] | None
    command: str
    suspects: tuple[str, ...]
    """What it may be due to, the likeliest first."""
    change: str
    """The next single thing to do."""
    reason: str
    until: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One number a step; None where it is not known."""

    steps: tuple[float | None, ...]
    loss: tuple[float | None, ...]
    reference_loss: tuple[float | None, ...]
    distance: tuple[float | None, ...]
    allowed: tuple[float | None, ...]
    tensors: tuple[str, ...]
    """The tensor that ``distance`` is the distance of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The weight with which some samples entered a gradient; 1 is right."""

    label: str
    weight: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """The smallest scale errors of gradients that would have failed, as fractions."""

    half: float | None
    """Of half of the gradients."""
    coarsest: float | None
    """Of every gradient; ``tensor`` is the one that could hide most."""
    tensor: str
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    key: str
    id: str
    axes: Mapping[str, object]
    role: str
    precision: str
    world_size: int | None
    planned: bool
    status: str
    seconds: float | None
    reference: str
    checks: Mapping[str, str]
    """Status of each check, those too that only a finding speaks of."""
    findings: tuple[Finding, ...]
    sensitivity: Sensitivity | None
    series: Series | None
    contributions: tuple[Share, ...]
    health: Mapping[str, object]
    """Of rung zero, what is drawn; empty for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    axes: tuple[str, ...]
    values: Mapping[str, object]
    rungs: tuple[str, ...]
    check: str
    step: str
    tensor: str
    ranks: tuple[int, ...]
    explanation: str
    residual: tuple[float | None, float | None] | None
    decided: bool
    finding: Finding | None
    """The one that it was read from, where it can be told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    setting: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rungs by checks."""

    title: str
    rungs: tuple[Rung, ...]
    checks: tuple[str, ...]
    skipped: tuple[str, ...]
    """Checks that every rung skips: a column of them would tell nothing."""

    @classmethod
    def of(cls, title: str, rungs: Iterable[Rung], checks: Iterable[str]) -> Table:
        rungs, checks = tuple(rungs), tuple(checks)
        skipped = tuple(check for check in checks if {rung.checks.get(check, "skip") for rung in rungs} == {"skip"})
        told = tuple(check for check in checks if check not in skipped)
        return cls(title=title, rungs=rungs, checks=told, skipped=skipped)


@dataclass(frozen=True, kw_only=True)
class Report:
    status: str
    sentence: str
    blamed: str
    broken: tuple[Broken, ...]
    rungs: tuple[Rung, ...]
    findings: tuple[Finding, ...]
    skipped: tuple[Skipped, ...]
    ablations: tuple[str, ...]
    """Of each setting that was changed, what came of it."""
    accepted: tuple[Finding, ...]
    matrix: Mapping[str, str]
    plan: Mapping[str, str]
    environment: Mapping[str, str]

    @cached_property
    def tables(self) -> tuple[Table, ...]:
        """One device alone, and singles with what is compared with them: few checks are asked of both."""
        alone = [rung for rung in self.rungs if rung.role in ALONE]
        ladder = [rung for rung in self.rungs if rung.role not in ZERO]
        compared = _met(rung for rung in ladder if rung.role not in ALONE)
        examined = _met(rung for rung in alone if rung.role in ZERO)
        apart = [check for check in _met(alone) if check in examined or check not in compared]
        if not compared or not apart:
            title = "The ladder" if compared or not alone else "One device"
            return (Table.of(title, self.rungs, _met(self.rungs)),)
        return Table.of("One device", alone, apart), Table.of("The ladder", ladder, compared)

    @cached_property
    def by_id(self) -> dict[str, Rung]:
        return {rung.id: rung for rung in reversed(self.rungs)}

    @cached_property
    def hosts(self) -> frozenset[str]:
        """All that findings name. With one host alone it tells nothing."""
        return frozenset(host for finding in self.findings for host in finding.hosts)

    def counts(self) -> list[tuple[str, int]]:
        """How many rungs have each status, worst first; those that none has are left out."""
        met = [rung.status for rung in self.rungs]
        return [(status, met.count(status)) for status in reversed(words.STATUSES) if status in met]

    def broken_by(self, rung: str) -> Broken | None:
        """The broken set that the rung is an example of."""
        return next((broken for broken in self.broken if rung in broken.rungs), None)

    def passing_neighbours(self, rung: str) -> list[str]:
        """Rungs that pass and have one axis less; for a rung of one axis, the others of one axis."""
        here = self.by_id.get(rung)
        if here is None or not here.axes:
            return []
        axes = dict(here.axes)
        less = [{axis: axes[axis] for axis in axes if axis != off} for off in axes]
        return [
            other.id
            for other in self.rungs
            if other.status == "pass" and other.role != "twin"
            if (other.axes in less if len(axes) > 1 else other.role == "rung" and len(other.axes) == 1)
        ]


def _met(rungs: Iterable[Rung]) -> dict[str, None]:
    """Their checks, in the order in which they are first met."""
    return dict.fromkeys(check for rung in rungs for check in rung.checks)
