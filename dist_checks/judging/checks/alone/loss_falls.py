"""Does the loss fall, and below what the frequencies of labels alone would give?"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dist_checks.judging.heard import classes as classes_of
from dist_checks.judging.heard import curve, starts_trained
from dist_checks.judging.reach import moved, reached
from dist_checks.judging.slopes import wrong_way
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.rung import Role

FEWEST = 50
"""Steps below which there is no curve."""

STUCK = 0.03
"""Part of ln(classes): nearer to it, nothing was learned."""

SLOW = 0.98
"""A third of the steps that ends above so much of the one before has stopped falling."""

NEAR = 0.25
"""Part of the way from the first loss to the entropy of labels that may be left where a loss has stopped there."""

HARDLY = 0.25
"""Part of the way from the first loss to the entropy of labels: large models need more steps than small ones."""


def check(view: RungView) -> Iterator[Finding]:
    """On the rung that learns: a healthy curve falls fast to the entropy of single labels, then more slowly."""
    writer = view.writer("loss_falls")
    if view.rung.role is not Role.LEARN:
        yield writer.skipped("the rung that learns tells")
        return
    if view.rung.steps < FEWEST:
        yield writer.skipped(f"{view.rung.steps} steps are no curve: at least {FEWEST}")
        return
    found = curve(view)
    steps = sorted(found)
    if len(steps) < FEWEST:
        said = f"only {len(steps)} steps were recorded"
        yield writer.unseen(f"{said}: {view.trace.cut}") if view.trace.cut else writer.skipped(f"{said}: no curve")
        return
    values = np.array([found[step] for step in steps])
    _, middle, last = (float(part.mean()) for part in np.array_split(values, 3))
    end = float(values[-max(5, len(values) // 10) :].mean())
    classes = classes_of(view) or 0
    even = math.log(classes) if classes > 1 else math.nan
    train = next((split for split in view.observed("split") if split["split"] == "train"), {})
    unigram = float(train.get("unigram") or math.nan)
    lines = "".join(
        f", {name} {value:.3g}"
        for name, value in ((f"ln({classes})", even), ("entropy of labels", unigram), ("of pairs", train.get("bigram")))
        if value is not None and math.isfinite(value)
    )
    said = f"the loss went from {values[0]:.4g} to {end:.4g} in {len(steps)} steps{lines}"
    fields = {"step": steps[-1], "observed": end}
    wrong = {"blames": Blamed.RECIPE}
    if view.own_loop and not classes and math.isfinite(end):
        yield writer.skipped(f"{said}; it is no cross-entropy that was heard, so it may mean anything", **fields)
    elif not math.isfinite(end) or (_rises(values) if view.own_loop else end > values[0] * 1.05 + 0.05):
        first = ("sign",) if wrong_way(view.own) else ()
        yield writer.failed(said, **fields, **wrong, allowed=float(values[0]), symptom="loss_rises", suspects=first)
    elif view.own_loop and _falls(values) and end > unigram - 0.02:
        yield writer.unseen(f"{said}; it falls: more steps (single.learn) would tell", **fields)
    elif abs(end - even) <= STUCK * even and unigram < (1 - STUCK) * even:
        yield writer.failed(
            said, **fields, **wrong, allowed=(1 - STUCK) * even, symptom="loss_stuck", suspects=_suspects(view)
        )
    elif end > unigram - 0.02 and last > SLOW * middle and view.own_loop:
        # A script may need more steps for what it learns next, as masked language models do.
        yield writer.unseen(
            f"{said}: no better than the frequencies of labels. More steps (single.learn) would tell whether labels "
            "have anything to do with the inputs",
            **fields,
        )
    elif end > unigram - 0.02 and last > SLOW * middle:
        there = end < unigram + max(0.02, NEAR * (values[0] - unigram))
        yield writer.failed(
            said,
            **fields,
            **wrong,
            allowed=unigram,
            symptom="loss_at_frequencies" if there else "loss_slow",
            suspects=_suspects(view) if there else (),
        )
    elif end > unigram and not _may_be_trained(view):
        if values[0] - end < HARDLY * (values[0] - unigram):
            yield writer.failed(f"{said}; it still falls", **fields, **wrong, allowed=unigram, symptom="loss_slow")
        else:
            yield writer.unseen(f"{said}; it still falls: more steps (single.learn) would tell", **fields)
    else:
        limit = unigram if math.isfinite(unigram) else float(values[0])
        yield writer.passed(said, **fields, allowed=limit)


def _falls(values: np.ndarray) -> bool:
    """The last third is below the one before it, by more than batches differ."""
    _, middle, last = np.array_split(values, 3)
    return float(middle.mean() - last.mean()) > 3 * _noise(middle, last)


def _rises(values: np.ndarray) -> bool:
    """The last third is above the first one, by more than batches differ: a first loss may be a lucky one."""
    first, _, last = np.array_split(values, 3)
    return float(last.mean() - first.mean()) > max(3 * _noise(first, last), 0.05 * float(first.mean()))


def _noise(one: np.ndarray, other: np.ndarray) -> float:
    return math.sqrt(one.var() / len(one) + other.var() / len(other))


def _may_be_trained(view: RungView) -> bool:
    return starts_trained(view) is not False


def _suspects(view: RungView) -> list[str]:
    """The first of them, by what the trace tells: do weights move, do gradients reach them?"""
    flows, moves = reached(view.own), moved(view.own)
    if flows is not None and flows < 0.9:
        return ["flow"]
    covers = {name for group in view.trace.header.get("optimizer") or () for name in group.get("parameters") or ()}
    if None in covers:
        return ["optimizer"]
    if moves is not None and moves < 0.9:
        return ["rate", "optimizer"]
    return ["labels", "inputs"] if moves else []
