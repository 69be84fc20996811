"""Does the validation loss follow the training loss?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dist_checks.judging.heard import curve
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.rung import Role

FEWEST = 50
ABOVE = 1.05
"""Above so much of the first validation loss, nothing was learned that holds elsewhere."""


def check(view: RungView) -> Iterator[Finding]:
    """Training on few samples many times is memorising, and rightly so: only what is worse than before fails."""
    writer = view.writer("memorised")
    if view.rung.role is not Role.LEARN or view.rung.steps < FEWEST:
        yield writer.skipped("a run that learns for a while tells")
        return
    seen = [each for each in view.observed("validation") if each["targets"]]
    if len(seen) < 2 or seen[0]["step"]:
        yield writer.skipped(
            "no loss without a gradient was heard before the first step, and again later"
            if view.own_loop
            else "the recipe has no validation samples"
        )
        return
    points = [(each["step"], each["loss_sum"] / each["targets"]) for each in seen]
    found = curve(view)
    train = float(np.mean([found[step] for step in sorted(found)[-10:]])) if found else float("nan")
    first, last = points[0][1], points[-1][1]
    best = min(loss for _, loss in points)
    said = (
        f"validation loss {first:.4g} before, {last:.4g} after {points[-1][0]} steps (lowest {best:.4g}); "
        f"training {train:.4g}"
    )
    if not best < first or last > ABOVE * first:
        yield writer.failed(
            said,
            step=points[-1][0],
            observed=last,
            allowed=ABOVE * first,
            blames=Blamed.RECIPE,
            symptom="memorised" if train * ABOVE < first else "loss_rises" if train > ABOVE * first else "loss_stuck",
            suspects=("drift",) if train * ABOVE < first and not best < first else (),
        )
    else:
        yield writer.passed(said, step=points[-1][0], observed=last, allowed=ABOVE * first)
