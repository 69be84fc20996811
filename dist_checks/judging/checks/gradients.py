"""Is each gradient that of one device, after reduction and before clipping?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dist_checks.judging.differences import findings
from dist_checks.judging.own import GRADIENTS, add
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView
from dist_checks.trace import Kind


def check(view: RungView) -> Iterator[Finding]:
    """Tensor by tensor, step by step; nothing else sees a constant factor under Adam."""
    writer = view.writer("gradients")
    if refused := writer.incomparable():
        yield refused
        return
    for finding in findings(writer, Kind.GRADIENT, view.gradients):
        yield replace(finding, message=finding.message + _moment(view))


def _moment(view: RungView) -> str:
    """When they were seen, where that was not before clipping for certain."""
    moments = {step.get("gradients_at") for rank in view.trace.ranks for step in rank.steps.values()}
    if moments & {"optimizer.step()"}:
        return f"; seen as the optimizer got them, after any clipping ({add(GRADIENTS)})"
    seen = sorted(moment for moment in moments if moment)
    return f"; seen before clipping, at {' and '.join(seen)}" if seen else ""
