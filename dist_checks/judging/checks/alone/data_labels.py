"""Are labels those that the loss chooses from?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.judging.checks.alone.splits import split, unsplit
from dist_checks.judging.heard import classes as classes_of
from dist_checks.judging.heard import next_token
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView

MOST = 0.95
"""Share of all labels that one may have."""
FEW = 1000
"""Classes: with more, some never occur, and rightly."""


def check(view: RungView) -> Iterator[Finding]:
    """From 0 to classes - 1, all of them there where they are few, none of them nearly alone."""
    writer = view.writer("data_labels")
    if (finding := unsplit(view, writer)) is not None:
        yield finding
        return
    train = split(view, "train")
    classes, low, high = classes_of(view), train.get("smallest"), train.get("largest")
    if not classes or low is None or high is None:
        yield writer.skipped("the recipe does not say how many classes there are, or has no labels")
        return
    counts = {int(label): int(count) for label, count in train["labels"].items()}
    label = max(counts, key=lambda each: counts[each])
    share = counts[label] / max(1, sum(train["counts"]))
    said = f"labels from {low} to {high}, {train['classes_seen']} of {classes} classes; {label} has {share:.0%}"
    wrong = {"blames": Blamed.RECIPE, "symptom": "labels_wrong"}
    few = int(classes) <= FEW and not next_token(view)
    if low < 0 or high >= int(classes) or (few and low == 1 and train["classes_seen"] >= int(classes) - 1):
        off = low == 1
        yield writer.failed(
            said, **wrong, observed=high, allowed=int(classes) - 1, suspects=("off_by_one",) if off else ("range",)
        )
    elif share > MOST:
        yield writer.failed(said, **wrong, observed=share, allowed=MOST, suspects=("imbalance",))
    else:
        yield writer.passed(said, observed=share, allowed=MOST)
