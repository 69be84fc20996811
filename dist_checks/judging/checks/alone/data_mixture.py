"""Are sources mixed as declared?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dist_checks.judging.checks.alone.splits import split, unsplit
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView

APART = 0.03
SIGMAS = 4.0


def check(view: RungView) -> Iterator[Finding]:
    """The share of samples of each source, against the one that the recipe declares."""
    writer = view.writer("data_mixture")
    if (finding := unsplit(view, writer)) is not None:
        yield finding
        return
    declared, sources = view.recipe.get("mixture"), split(view, "train").get("sources")
    if not declared or not sources:
        yield writer.skipped("the recipe declares no mixture of sources")
        return
    total, whole = sum(sources.values()), sum(declared.values())
    apart = {name: sources.get(name, 0) / total - declared.get(name, 0.0) / whole for name in {*sources, *declared}}
    worst = max(apart, key=lambda name: abs(apart[name]))
    share = declared.get(worst, 0.0) / whole
    allowed = APART + SIGMAS * math.sqrt(share * (1 - share) / total)
    said = f"{worst} has {sources.get(worst, 0) / total:.1%} of {total} samples, declared {share:.1%}"
    if abs(apart[worst]) > allowed:
        yield writer.failed(said, observed=abs(apart[worst]), allowed=allowed, blames=Blamed.RECIPE, symptom="mixture")
    else:
        yield writer.passed(said, observed=abs(apart[worst]), allowed=allowed)
