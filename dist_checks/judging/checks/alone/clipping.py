"""Does the gradient norm settle, and is the gradient clipped now and then only?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dist_checks.judging.heard import curve
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.rung import Role
from dist_checks.trace import Kind

FEWEST = 50
ALWAYS = 0.97
"""Share of steps. The built-in recipes clip in up to 80 % of the steps of a short run with a high learning rate."""
FAR = 3.0
"""Times the limit: a norm just above it is scaled by next to nothing."""
GROWS = 10.0
"""Times: the last quarter of the norms against the second."""
HEAVIER = 3.0
"""Times: all weights together, from before the first step to the last."""


def check(view: RungView) -> Iterator[Finding]:
    """Of the norms that decided about clipping."""
    writer = view.writer("clipping")
    if view.rung.role is not Role.LEARN or view.rung.steps < FEWEST:
        yield writer.skipped("a run that learns for a while tells")
        return
    events = list(view.trace.ranks[0].steps.values()) if view.trace.ranks else []
    norms = np.array([e["norm_used"] for e in events if e.get("norm_used") is not None], float)
    if len(norms) < FEWEST:
        yield writer.skipped("the loop reported no gradient norms")
        return
    quarters = [float(np.median(part)) for part in np.array_split(norms, 4)]
    growth = quarters[3] / quarters[1] if quarters[1] > 0 else 0.0
    limit = next((float(e["clip"]) for e in events if e.get("clip") is not None), None)
    said = (
        f"the gradient norm is {quarters[0]:.3g}, {quarters[1]:.3g}, {quarters[2]:.3g}, {quarters[3]:.3g} in quarters"
    )
    if growth > GROWS:
        wrong = {"blames": Blamed.RECIPE, "symptom": "norm_grows", "suspects": _suspects(view)}
        yield writer.failed(said, observed=growth, allowed=GROWS, **wrong)
        return
    if limit is None:
        yield writer.passed(f"{said}; there is no clipping", observed=growth, allowed=GROWS)
        return
    late = norms[len(norms) // 10 :]
    share, median = float((late > limit).mean()), float(np.median(late))
    more = f"{said}; {share:.0%} of the steps are clipped to {limit:g}, in the middle by {max(1.0, median / limit):.3g}"
    if share > ALWAYS and median > FAR * limit:
        yield writer.failed(more, observed=share, allowed=ALWAYS, blames=Blamed.RECIPE, symptom="clipped_always")
    else:
        yield writer.passed(more, observed=share, allowed=1.0)


def _suspects(view: RungView) -> tuple[str, ...]:
    """A loss that falls all the while is that of a training that is stable: then weights or the scale have grown."""
    found = curve(view)
    means = [found[step] for step in sorted(found)]
    weights = view.own.full(Kind.WEIGHT)
    if len(means) < FEWEST or len(weights.steps) < 2 or not float(np.mean(means[-10:])) < means[0]:
        return ()
    before, after = (weights.sum_squares[weights.at(step)].sum() for step in (weights.steps[0], weights.steps[-1]))
    return ("decay",) if after > HEAVIER**2 * before else ("scale",)
