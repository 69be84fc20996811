"""What the fixture ``ladder`` is called with, and how its reports are read."""

from __future__ import annotations

from typing import Any, Protocol

from dist_checks.session import Outcome


class Ladder(Protocol):
    def __call__(
        self, axes: dict[str, Any], *, fault: str | None = None, select: str = "", **matrix: Any
    ) -> Outcome: ...


def broken(report: dict[str, Any]) -> list[list[str]]:
    """The axes of each minimal set that broke."""
    return sorted(broken["axes"] for broken in report["broken"])


def findings(report: dict[str, Any], check: str, rung: str) -> list[dict[str, Any]]:
    """What failed."""
    return [f for f in report["findings"] if (f["check"], f["rung"], f["status"]) == (check, rung, "fail")]
