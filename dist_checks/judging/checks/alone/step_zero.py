"""Is the first loss that of a model that knows nothing?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dist_checks.judging.losses import losses
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.rung import Role

ABOVE = 0.4
"""Nats above ln(classes): independent logits of standard deviation s add s^2 / 2. Built-in recipes measured 0.03 and
less, a last layer as torch initialises it 0.17."""

BELOW = 0.1
"""Part of ln(classes) below it."""

NOISE = 2.0
"""Divided by the square root of the number of targets: few samples say little."""


def check(view: RungView) -> Iterator[Finding]:
    """Cross-entropy over V classes begins at ln(V)."""
    writer = view.writer("step_zero")
    classes = view.recipe.get("classes")
    if view.rung.role is Role.OVERFIT:
        yield writer.skipped("the single tells")
        return
    if not classes or int(classes) < 2:
        yield writer.skipped("the recipe does not say how many classes its loss chooses from")
        return
    found = losses(view.own).get(0)
    if found is None or not found.targets:
        said = "the loss of the first step was not recorded"
        yield writer.unseen(f"{said}: {view.trace.cut}") if view.trace.cut else writer.skipped(said)
        return
    even, noise = math.log(int(classes)), NOISE / math.sqrt(found.targets)
    lowest, highest = even - max(BELOW * even, noise), even + ABOVE + noise
    said = f"the first loss is {found.mean:.4g}, ln({classes}) is {even:.4g}"
    fields = {"step": 0, "observed": found.mean}
    if not math.isfinite(found.mean):
        yield writer.failed(said, **fields, allowed=even, blames=Blamed.RECIPE, symptom="not_finite")
    elif found.mean > highest:
        wide = ("inputs",) if _wide(view) else ()
        yield writer.failed(
            said, **fields, allowed=highest, blames=Blamed.RECIPE, symptom="first_loss_high", suspects=wide
        )
    elif view.recipe.get("starts_trained"):
        if found.mean < lowest:
            yield writer.passed(f"{said}: it starts from trained weights, as the recipe says", **fields, allowed=lowest)
        else:
            yield writer.failed(said, **fields, allowed=lowest, blames=Blamed.RECIPE, symptom="not_loaded")
    elif found.mean < lowest:
        yield writer.failed(said, **fields, allowed=lowest, blames=Blamed.RECIPE, symptom="first_loss_low")
    else:
        yield writer.passed(said, **fields, allowed=highest)


def _wide(view: RungView) -> bool:
    features = [split.get("features") for split in view.observed("split")]
    return any(each and max(abs(each["mean"]), each["std"]) > 10 for each in features)
