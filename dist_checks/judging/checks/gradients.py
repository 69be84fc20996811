"""Is each gradient that of one device, after reduction and before clipping?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.judging.differences import findings
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView
from dist_checks.trace import Kind


def check(view: RungView) -> Iterator[Finding]:
    """Tensor by tensor, step by step; nothing else sees a constant factor under Adam."""
    writer = view.writer("gradients")
    if refused := writer.incomparable():
        yield refused
        return
    yield from findings(writer, Kind.GRADIENT, view.gradients)
