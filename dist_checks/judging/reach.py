"""Of all parameters: how many have a gradient, and how many move?"""

from __future__ import annotations

import numpy as np

from dist_checks.judging.logical import Key
from dist_checks.judging.seen import Seen
from dist_checks.trace import NO_ITEM, Kind


def reached(seen: Seen) -> float | None:
    """Share of the trained parameters with a gradient that is not zero, in any recorded step; None if not recorded."""
    gradients, trained = seen.full(Kind.GRADIENT), _trained(seen)
    if not trained:
        return None
    got = {gradients.names[t] for t, s in zip(gradients.tensor, gradients.sum_squares, strict=True) if s > 0}
    return len(got & trained) / len(trained)


def moved(seen: Seen) -> float | None:
    """Share of the trained parameters whose bits change, from before the first step to the last; None if unknown."""
    weights, trained = seen.full(Kind.WEIGHT), _trained(seen)
    if not trained or len(weights.steps) < 2:
        return None
    first, last = weights.steps[0], weights.steps[-1]
    there = [n for n in trained if Key(n, first, NO_ITEM) in weights.rows and Key(n, last, NO_ITEM) in weights.rows]
    if not there:
        return None
    rows = np.array([[weights.rows[Key(name, step, NO_ITEM)] for step in (first, last)] for name in there])
    return float((weights.fingerprint[rows[:, 0]] != weights.fingerprint[rows[:, 1]]).mean())


def _trained(seen: Seen) -> set[str]:
    rows = seen.trace.header.get("parameters") or ()
    return {str(row["name"]) for row in rows if row.get("trainable", True) and not row.get("tied")}
