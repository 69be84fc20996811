"""Is the first loss that of a model that knows nothing?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dist_checks.judging.heard import UNHEARD, classes, heard, starts_trained
from dist_checks.judging.losses import losses
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.rung import Role

ABOVE = 0.4
"""Nats above ln(classes): independent logits of standard deviation s add s^2 / 2. Built-in recipes measured 0.03 and
less, a last layer as torch initialises it 0.17."""

ABOVE_OF_SCRIPTS = 1.0
"""Models in use begin with logits of a standard deviation of 1: T5 of transformers measured 0.73."""

BELOW = 0.1
"""Part of ln(classes) below it."""

NOISE = 2.0
"""Divided by the square root of the number of targets: few samples say little."""


def check(view: RungView) -> Iterator[Finding]:
    """Cross-entropy over V classes begins at ln(V)."""
    writer = view.writer("step_zero")
    chosen_from = classes(view)
    if view.rung.role is Role.OVERFIT:
        yield writer.skipped("the single tells")
        return
    if not chosen_from or chosen_from < 2:
        said = UNHEARD if view.own_loop else "the recipe does not say how many classes its loss chooses from"
        yield writer.skipped(said)
        return
    first, targets = _first(view)
    if not targets:
        said = "the loss of the first step was not recorded"
        yield writer.unseen(f"{said}: {view.trace.cut}") if view.trace.cut else writer.skipped(said)
        return
    if view.own_loop and chosen_from == heard(view).get("rows"):
        yield writer.skipped(f"{chosen_from} targets, each one of {chosen_from}: samples are told from each other")
        return
    even, noise = math.log(chosen_from), NOISE / math.sqrt(targets)
    above = ABOVE_OF_SCRIPTS if view.own_loop else ABOVE
    lowest, highest = even - max(BELOW * even, noise), even + above + noise
    said = f"the first loss is {first:.4g}, ln({chosen_from}) is {even:.4g}"
    fields = {"step": 0, "observed": first}
    if not math.isfinite(first):
        yield writer.failed(said, **fields, allowed=even, blames=Blamed.RECIPE, symptom="not_finite")
    elif first > highest:
        wide = ("inputs",) if _wide(view) else ()
        yield writer.failed(
            said, **fields, allowed=highest, blames=Blamed.RECIPE, symptom="first_loss_high", suspects=wide
        )
    elif starts_trained(view):
        if first < lowest:
            yield writer.passed(
                f"{said}: it starts from trained weights, as {_source(view)} says", **fields, allowed=lowest
            )
        else:
            yield writer.failed(said, **fields, allowed=lowest, blames=Blamed.RECIPE, symptom="not_loaded")
    elif first < lowest and starts_trained(view) is None:
        yield writer.skipped(
            f"{said}: the weights are trained ones, or labels leak into the inputs: command.starts_trained would tell",
            **fields,
        )
    elif first < lowest:
        yield writer.failed(said, **fields, allowed=lowest, blames=Blamed.RECIPE, symptom="first_loss_low")
    else:
        yield writer.passed(said, **fields, allowed=highest)


def _first(view: RungView) -> tuple[float, int]:
    """(loss of the first step per target, number of targets)."""
    if told := heard(view):
        return float(told["loss_sum"]) / int(told["targets"]), int(told["targets"])
    found = losses(view.own).get(0)
    return (math.nan, 0) if found is None else (found.mean, found.targets)


def _source(view: RungView) -> str:
    return "command.starts_trained" if view.own_loop else "the recipe"


def _wide(view: RungView) -> bool:
    features = [split.get("features") for split in view.observed("split")]
    return any(each and max(abs(each["mean"]), each["std"]) > 10 for each in features)
