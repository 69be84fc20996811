"""Are validation samples others than those of training, alike in kind, and the same each time?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from dist_checks.judging.checks.alone.splits import samples, split, unsplit
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView

APART = 0.5
"""Half of the sum over labels of how far their shares are apart."""
LONGER = 4.0
"""Times: the middle length."""
FEWEST = 200
"""Labels below which shares say nothing."""


def check(view: RungView) -> Iterator[Finding]:
    """By hashes, lengths and labels."""
    writer = view.writer("data_validation")
    if (finding := unsplit(view, writer, "validation")) is not None:
        yield finding
        return
    train, held = split(view, "train"), split(view, "validation")
    known = dict(zip(samples(train), train["ids"], strict=True))
    shared = [(id, known[each]) for id, each in zip(held["ids"], samples(held), strict=True) if each in known]
    # Data with copies in it has them on both sides of any split.
    chance = math.ceil(2 * len(held["ids"]) * (1 - len(known) / max(1, len(train["ids"]))))
    wrong = {"blames": Blamed.RECIPE}
    apart, longer = _apart(train, held), _longer(train, held)
    labels = "too few labels to compare their shares" if apart is None else f"labels are {apart:.2f} apart"
    if held.get("again"):
        yield writer.failed(
            f"{len(held['again'])} of {len(held['ids'])} validation samples are others when they are read again",
            **wrong,
            observed=len(held["again"]),
            allowed=0,
            symptom="random_validation",
        )
    elif len(shared) > chance:
        yield writer.failed(
            f"{len(shared)} of {len(held['ids'])} validation samples are in the training data: "
            + ", ".join(f"{one} is {two}" for one, two in shared[:3]),
            **wrong,
            observed=len(shared),
            allowed=chance,
            symptom="overlap",
        )
    elif (apart is not None and apart > APART) or longer > LONGER:
        far = longer if longer > LONGER else apart
        yield writer.failed(
            f"validation against training: {labels}, middle lengths differ {longer:.2g} times",
            **wrong,
            observed=far,
            allowed=LONGER if longer > LONGER else APART,
            symptom="drifted",
        )
    else:
        yield writer.passed(
            f"{len(shared) or 'none'} of {len(held['ids'])} validation samples are among {len(train['ids'])} of "
            f"training; {labels}",
            observed=apart,
            allowed=None if apart is None else APART,
        )


def _apart(train: Mapping[str, Any], held: Mapping[str, Any]) -> float | None:
    counts = [{int(label): int(count) for label, count in each["labels"].items()} for each in (train, held)]
    totals = [sum(each.values()) for each in counts]
    if min(totals) < FEWEST:
        return None
    labels = set(counts[0]) | set(counts[1])
    return 0.5 * sum(abs(counts[0].get(x, 0) / totals[0] - counts[1].get(x, 0) / totals[1]) for x in labels)


def _longer(train: Mapping[str, Any], held: Mapping[str, Any]) -> float:
    middles = [sorted(each["lengths"])[len(each["lengths"]) // 2] for each in (train, held)]
    return float(max(middles) / max(1, min(middles)))
