"""Findings that the user knows and lives with, until a date: shown as accepted, and counted for nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dist_checks.judging.verdict import Finding, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A finding, and why it does not count."""

    finding: Finding
    reason: str
    until: str

    def to_json(self) -> dict[str, Any]:
        return {**self.finding.to_json(), "reason": self.reason, "until": self.until}


def sort(
    findings: Sequence[Finding], entries: Sequence[Mapping[str, Any]], day: str
) -> tuple[tuple[Finding, ...], tuple[Accepted, ...]]:
    """(what counts, what is accepted). ``entries`` are ``[[accept]]`` of the matrix, ``day`` that of the run, as
    2026-01-31: an entry holds up to and including its own ``until``."""
    counts, accepted = [], []
    for finding in findings:
        entry = next((entry for entry in entries if _fits(finding, entry, day)), None)
        if entry is None:
            counts.append(finding)
        else:
            accepted.append(Accepted(finding=finding, reason=str(entry["reason"]), until=str(entry["until"])))
    return tuple(counts), tuple(accepted)


def _fits(finding: Finding, entry: Mapping[str, Any], day: str) -> bool:
    if finding.status not in (Status.FAIL, Status.INCONCLUSIVE) or day > str(entry["until"]):
        return False
    seen = {"rung": finding.rung, "check": finding.check, "tensor": finding.tensor}
    return all(not entry.get(key) or entry[key] == value for key, value in seen.items())
