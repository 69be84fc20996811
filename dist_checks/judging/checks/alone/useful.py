"""Does what the model is for get better with the loss?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dist_checks.judging.losses import losses
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.rung import Role

FEWEST = 50
FALLEN = 0.8
"""Of the first loss: where it fell below that, something was learned."""
MUCH = 0.05
"""Nats per target, by which it fell as well: weights that were loaded may have next to nothing left to learn."""


def check(view: RungView) -> Iterator[Finding]:
    """The recipe's own ``evaluate``, before the first step and after the last; higher is better."""
    writer = view.writer("useful")
    if view.rung.role is not Role.LEARN or view.rung.steps < FEWEST:
        yield writer.skipped("a run that learns for a while tells")
        return
    seen = [each["values"] for each in view.observed("metrics") if each["values"]]
    if len(seen) < 2:
        yield writer.skipped("the recipe does not measure what the model is for (evaluate)")
        return
    first, last = seen[0], seen[-1]
    found = losses(view.own)
    steps = sorted(found)
    begin, last_loss = (found[steps[at]].mean for at in (0, -1)) if steps else (math.nan, math.nan)
    fell = last_loss < FALLEN * begin and begin - last_loss > MUCH
    better = [name for name in last if _number(last[name]) > _number(first.get(name))]
    said = ", ".join(f"{name} {_number(first.get(name)):.4g} to {_number(last[name]):.4g}" for name in sorted(last))
    if fell and not better:
        yield writer.failed(
            f"the loss fell from {found[steps[0]].mean:.4g} to {found[steps[-1]].mean:.4g}, and nothing got better: "
            f"{said}",
            step=steps[-1],
            blames=Blamed.RECIPE,
            symptom="useless",
        )
    else:
        yield writer.passed(said if better else f"{said}; the loss has not fallen either")


def _number(value: object) -> float:
    """Not a number is worse than any."""
    number = float(value) if isinstance(value, (int, float)) else math.nan
    return -math.inf if math.isnan(number) else number
