"""Do gradients keep their size from the last block to the first?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.trace import Kind

MOST = 300.0
"""Times, over all blocks. Built-in recipes measured at most 4."""


def check(view: RungView) -> Iterator[Finding]:
    """Per element, of all parameters of a block together, at the first recorded step."""
    writer = view.writer("gradient_flow")
    blocks = [str(block) for block in view.trace.header.get("blocks") or ()]
    gradients = view.own.full(Kind.GRADIENT)
    if len(blocks) < 2 or not len(gradients):
        yield writer.skipped("the recipe names fewer than two blocks" if len(blocks) < 2 else "no gradients")
        return
    rows = gradients.at(gradients.steps[0])
    sizes = {}
    for block in blocks:
        mine = [row for row in rows if gradients.names[gradients.tensor[row]].startswith(f"{block}.")]
        if elements := sum(int(gradients.elements[row]) for row in mine):  # none in a block that is frozen
            squares = sum(float(gradients.sum_squares[row]) for row in mine)
            sizes[block] = (squares / elements) ** 0.5
    if len(sizes) < 2:
        yield writer.skipped("fewer than two blocks have gradients")
        return
    (start, first), *_, (end, last) = sizes.items()
    words = f"gradients per element are {first:.2e} in {start} and {last:.2e} in {end}"
    wrong = {"step": int(gradients.steps[0]), "allowed": MOST, "blames": Blamed.RECIPE}
    with np.errstate(divide="ignore", invalid="ignore"):
        vanish, explode = float(np.float64(last) / first), float(np.float64(first) / last)
    if vanish > MOST:
        yield writer.failed(words, **wrong, observed=vanish, symptom="gradient_vanishes")
    elif explode > MOST:
        yield writer.failed(words, **wrong, observed=explode, symptom="gradient_explodes")
    elif not np.isfinite(vanish):
        yield writer.unseen(words)
    else:
        yield writer.passed(words, step=wrong["step"], observed=max(vanish, explode), allowed=MOST)
