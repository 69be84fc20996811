"""Did the rung start from the weights that the reference started from?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.judging.start import replicas_agree, start
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.trace import BEFORE


def check(view: RungView) -> Iterator[Finding]:
    """Where they differ and replicas agree, nothing is broken, but nothing can be compared either: ranks have drawn
    other numbers. The same numbers in other places, or times a factor, are no such draw, nor is a bit."""
    writer = view.writer("initial_weights")
    if view.is_truth:
        yield writer.skipped(view.no_yard)
        return
    if view.no_yard or view.yard is None:
        yield writer.unseen(view.no_yard)
        return
    found = start(view.own, view.yard)
    other, bits = view.yard, found.other_bits
    if not bits and not found.different and view.reference is not None and view.reference is not view.yard:
        # In narrow numbers the truth has wider ones: bits are those of the single.
        other, bits = view.reference, start(view.own, view.reference).other_bits
    if not found.compared:
        because = view.trace.cut or "the probe was told not to"
        yield writer.unseen(f"no initial weights were recorded both here and in {view.yard.rung.id}: {because}")
    elif not replicas_agree(view.own):
        yield writer.skipped("replicas start from different weights: see replicas")
    elif found.changed:
        yield writer.failed(
            f"initial {found.first} {found.changed} {view.yard.rung.id} ({found.different} of {found.compared} tensors "
            f"differ): {found.observed:.1e} off. No other seed draws that, so something has been done to it after it "
            "was made",
            step=BEFORE,
            tensor=found.first,
            observed=found.observed,
            allowed=found.allowed,
        )
    elif bits and not found.different:
        name = bits[0]
        yield writer.failed(
            f"initial {name} is of the same type as that of {other.rung.id} and has other bits "
            f"({len(bits)} of {found.compared} tensors): something has changed it after it was made",
            step=BEFORE,
            tensor=name,
            observed=float(len(bits)),
            allowed=0.0,
        )
    elif not found.different:
        yield writer.passed(
            f"{found.compared} initial weights and buffers are those of {view.yard.rung.id}",
            step=BEFORE,
            tensor=found.first,
            observed=found.observed,
            allowed=found.allowed,
        )
    else:
        yield writer.unseen(
            f"not comparable: initial {found.first} differs by {found.observed:.1e} from that of {view.yard.rung.id} "
            f"({found.different} of {found.compared} tensors do), while replicas agree. Seed right before the model is "
            "made, the same on every rank and whatever the layout, or load the same weights in every rung",
            step=BEFORE,
            tensor=found.first,
            observed=found.observed,
            allowed=found.allowed,
            blames=Blamed.NOT_COMPARABLE,
        )
