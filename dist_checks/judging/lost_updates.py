"""Do parameters stored in narrow numbers still move? A step below half a unit in the last place is lost."""

from __future__ import annotations

import numpy as np

from dist_checks.judging.logical import Full, Key
from dist_checks.judging.moves import moves
from dist_checks.judging.tolerance import EPS, eps_of, within
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView, Writer
from dist_checks.trace import Kind

MOST_LOST = 0.5
"""Share of all updates together that may be lost. Healthy bf16 parameters of a small GPT lose 1 % at a learning rate of
1e-3 (norm gains, which are near 1, lose all of theirs), and 95 % at 1e-5."""


def vanishes(view: RungView, key: Key, step: float) -> bool:
    """Whether a step of the norm ``step`` is less than what storing the weight rounds away, in narrow numbers."""
    weights = view.own.full(Kind.WEIGHT)
    row = weights.rows.get(key)
    if row is None:
        return False
    eps = eps_of(weights.dtypes[weights.tensor[row]])
    return eps > EPS["float32"] and within(step, eps * float(weights.norm[row]))


def lost(view: RungView, writer: Writer, mine: Full) -> Finding | None:
    """Of a single with narrow parameters: which part of the updates of the float64 run arrives, all tensors together.

    By least squares on sketches: Adam's steps are of one size, so the factor is the share of elements that move
    (workofart/ml-by-hand PR#85: 0 of 768 in 100 steps).
    """
    if view.rung.reference is not None or view.truth is None or view.no_yard or view.not_comparable:
        return None
    weights = view.own.full(Kind.WEIGHT)
    narrow = {name for at, name in enumerate(weights.names) if eps_of(weights.dtypes[at]) > EPS["float32"]}
    if not narrow:
        return None
    right = moves(view.truth)
    dot = square = 0.0
    share: dict[str, list[float]] = {}
    for row in range(len(mine)):
        key = mine.key(row)
        other = right.rows.get(key)
        if other is None or key.name not in narrow or key.step not in view.comparable_steps:
            continue
        one, two = float(mine.sketch[row] @ right.sketch[other]), float(right.sketch[other] @ right.sketch[other])
        dot, square = dot + one, square + two
        share.setdefault(key.name, []).append(one / two if two else 1.0)
    if not square:
        return None
    arrives = dot / square
    still = [name for name, shares in share.items() if not within(MOST_LOST, float(np.mean(shares)))]
    dtype = next(weights.dtypes[at] for at, name in enumerate(weights.names) if name in narrow)
    where = f"; least in {len(still)} of {len(share)} tensors, the first is {still[0]}" if still else ""
    told = f"{100 * arrives:.0f} % of the updates arrive in {dtype} parameters{where}"
    if within(1 - arrives, MOST_LOST):
        return writer.passed(told, observed=1 - arrives, allowed=MOST_LOST)
    return writer.failed(
        f"{told}: their steps are below half a unit in the last place",
        step=0,
        tensor=still[0] if still else None,
        observed=1 - arrives,
        allowed=MOST_LOST,
        scale=arrives,
    )
