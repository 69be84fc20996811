"""A Markdown table, a row a rung: how far its gradients were from one device, and how long it took."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dist_checks.report import words
from dist_checks.report.read import read
from dist_checks.report.view import Rung
from dist_checks.report.visible import visible

HEAD = ("rung", "ranks", "numbers", "status", "gradients off", "x the single", "seconds")


def render(report: Mapping[str, Any]) -> str:
    """``gradients off`` is the relative distance that came nearest to its limit; ``x the single`` the largest distance
    from the float64 run over that of the single of the same numerics (empty in float64)."""
    rows = [HEAD, tuple("---" for _ in HEAD), *_rows(report)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _rows(report: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for rung in read(report).rungs:
        ratio, observed = _gradients(rung)
        yield (
            visible(rung.id).replace("|", "\\|"),
            "" if rung.world_size is None else str(rung.world_size),
            rung.precision,
            rung.status,
            words.number(observed, 2),
            "" if ratio is None else f"{ratio:.2f}",
            "" if rung.seconds is None else f"{rung.seconds:.1f}",
        )


def _gradients(rung: Rung) -> tuple[float | None, float | None]:
    for finding in rung.findings:
        if finding.check == "gradients":
            return finding.truth_ratio, finding.observed
    return None, None
