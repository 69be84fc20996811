"""What came of one rung: its findings, its status, and the finding that explains the status best."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dist_checks.judging.checks import ALONE, CHECKS
from dist_checks.judging.own import UNREAD
from dist_checks.judging.verdict import Finding, Status
from dist_checks.rung import Rung

ORDER = {name: at for at, (name, _) in enumerate((*ALONE, *CHECKS))}
"""Cause before effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one rung."""

    rung: Rung
    findings: tuple[Finding, ...]
    hosts: tuple[str, ...] = ()
    hung: bool = False
    """It did not end in time."""

    @property
    def status(self) -> Status:
        """SKIP only where nothing at all was judged, or what ranks hold could not be; one thing that could not be seen
        makes it INCONCLUSIVE."""
        return status_of(self.findings)

    @property
    def unread(self) -> bool:
        return is_unread(self.findings)

    @property
    def first(self) -> Finding | None:
        """The finding that explains the status best: the earliest, of one step the first cause."""
        wanted = [finding for finding in self.findings if finding.status is self.status]
        if self.status is not Status.FAIL:
            # What was not seen is due to what did not happen: a lost job, other initial weights.
            return min(wanted, key=lambda f: (f.blames is None, f.check != "completes", *_when(f)), default=None)
        first = min(wanted, key=_when)
        if first.explanation is not None:
            return first
        # What repairs the tensors of the same step says more than the bare first finding.
        same = (f for f in wanted if f.explanation is not None and f.step == first.step)
        explained = min(same, key=_when, default=None)
        return first if explained is None else replace(first, explanation=explained.explanation)


def rung_status(statuses: Iterable[Status]) -> Status:
    found = set(statuses)
    order = (Status.FAIL, Status.INCONCLUSIVE, Status.PASS, Status.SKIP)
    return next((status for status in order if status in found), Status.INCONCLUSIVE)


def is_unread(findings: Iterable[Finding]) -> bool:
    """Whether samples and losses are all that was seen of the rung."""
    return any(finding.status is Status.SKIP and finding.message.startswith(UNREAD) for finding in findings)


def status_of(findings: Sequence[Finding]) -> Status:
    status = rung_status(finding.status for finding in findings)
    return Status.SKIP if status is Status.PASS and is_unread(findings) else status


def cause(finding: Finding) -> int:
    """Where its check stands in the order of cause and effect."""
    return ORDER.get(finding.check, len(ORDER))


def _when(finding: Finding) -> tuple[float, int]:
    # What names no step is true of the whole run; that a run did not complete is the last thing that happens in it.
    step = math.inf if finding.check == "completes" else -2 if finding.step is None else finding.step
    return step, cause(finding)
