"""How far does a step move each weight, relative to the weight?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dist_checks.judging.logical import Full, Key
from dist_checks.judging.moves import moves
from dist_checks.judging.tolerance import EPS, eps_of
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.trace import BEFORE, NO_ITEM, Kind

MOST = 1.0
"""Update over weight, of matrices: 1e-3 is usual in large models; the built-in recipes, small and fast, have 0.1.
Of one matrix the weight after the step counts, since some rightly start at zero; of half of all, that before it."""

NOISE = 1e-6
"""Of the largest gradient of a step: below it, one that is zero in exact arithmetic (of a key bias, say) holds rounding
alone, and may well be rounded away."""

FEWEST = 5
"""Steps after which a learning rate that is still zero is no warm-up any more."""


def check(view: RungView) -> Iterator[Finding]:
    """Of matrices. A parameter with a gradient that never moves fails, unless its 16-bit type rounds the step away:
    that is what ``updates`` is about."""
    writer = view.writer("update_ratio")
    weights, gradients = view.own.full(Kind.WEIGHT), view.own.full(Kind.GRADIENT)
    steps = moves(view.own)
    rows = view.trace.header.get("parameters") or ()
    matrices = {str(row["name"]) for row in rows if len(row.get("shape") or ()) > 1 and not row.get("tied")}
    ratios: dict[str, list[float]] = {}
    grown: dict[str, list[float]] = {}
    norm = weights.norm
    empty = {weights.key(row).name for row in weights.at(weights.steps[0]) if not norm[row] > 0} if len(steps) else ()
    moved: dict[str, bool] = {}
    for row in range(len(steps)):
        key = steps.key(row)
        size = weights.rows.get(Key(key.name, key.step, NO_ITEM))
        if size is None or view.own.skipped(key.step):
            continue
        step = float(np.linalg.norm(steps.sketch[row]))
        moved[key.name] = moved.get(key.name, False) or step > 0
        if key.name in matrices and norm[size] > 0:
            ratios.setdefault(key.name, []).append(step / float(norm[size]))
            before = weights.rows[Key(key.name, key.step - 1 if key.step else BEFORE, NO_ITEM)]
            if key.name not in empty and norm[before] > 0:
                grown.setdefault(key.name, []).append(step / float(norm[before]))
    rates = [view.trace.ranks[0].steps.get(step, {}).get("learning_rates") for step in {int(at) for at in steps.step}]
    if len(rates) < FEWEST and rates and not any(rate for each in rates for rate in each or (1.0,)):
        yield writer.skipped(f"the learning rate is zero in the {len(rates)} steps that there are: a warm-up begins so")
        return
    if not moved:
        said = "no two steps with weights one after the other were recorded"
        yield writer.unseen(f"{said}: {view.trace.cut}") if view.trace.cut else writer.skipped(said)
        return
    pushed = _pushed(gradients)
    narrow = {name for at, name in enumerate(weights.names) if eps_of(weights.dtypes[at]) > EPS["float32"]}
    still = [name for name, any_ in moved.items() if not any_ and name in pushed and name not in narrow]
    middle = {name: float(np.median(values)) for name, values in ratios.items()}
    if still:
        covered = {name for group in view.trace.header.get("optimizer") or () for name in group.get("parameters") or ()}
        yield writer.failed(
            f"{len(still)} of {len(moved)} parameters have a gradient and never move: {', '.join(still[:4])}",
            tensor=still[0],
            observed=0.0,
            blames=Blamed.RECIPE,
            symptom="updates_small",
            suspects=("rate",) if set(still) <= covered else ("optimizer",),
        )
        return
    if not middle:
        yield writer.skipped("there is no matrix")
        return
    most, least = max(middle, key=lambda n: middle[n]), min(middle, key=lambda n: middle[n])
    words = f"a step moves {most} by {middle[most]:.2e} of itself, {least} by {middle[least]:.2e}"
    usual = float(np.median([np.median(values) for values in grown.values()])) if grown else 0.0
    if usual > MOST:
        yield writer.failed(
            f"a step moves half of the {len(grown)} matrices by {usual:.2e} of what they were, or more",
            observed=usual,
            allowed=MOST,
            blames=Blamed.RECIPE,
            symptom="updates_large",
        )
    elif middle[most] > MOST:
        yield writer.failed(
            words, tensor=most, observed=middle[most], allowed=MOST, blames=Blamed.RECIPE, symptom="updates_large"
        )
    else:
        yield writer.passed(words, tensor=most, observed=middle[most], allowed=MOST)


def _pushed(gradients: Full) -> set[str]:
    """Names of those with a gradient that is no rounding."""
    out = set[str]()
    for step in gradients.steps:
        rows = gradients.at(step)
        least = NOISE**2 * max((float(gradients.sum_squares[row]) for row in rows), default=0.0)
        out |= {gradients.names[gradients.tensor[row]] for row in rows if gradients.sum_squares[row] > least}
    return out
