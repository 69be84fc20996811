"""Did each sample enter the first gradient with weight 1?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dist_checks.judging.contributions import NotSeen, diagnosis, in_words, weigh
from dist_checks.judging.verdict import Explanation, Finding
from dist_checks.judging.view import RungView


def check(view: RungView) -> Iterator[Finding]:
    """A gradient that is another combination of the samples' gradients: a fault of data or of normalisation."""
    writer = view.writer("contributions")
    if refused := writer.incomparable():
        yield refused
        return
    if view.own_loop:
        yield writer.skipped("a script's loop computes no gradients of single samples: a recipe would")
        return
    try:
        found = weigh(view)
    except NotSeen as why:
        yield writer.unseen(str(why))
        return
    worst = float(np.max(np.abs(found.weights - 1)))
    if not found.explained:
        yield writer.skipped(
            f"no weights of samples explain the gradient of step {found.step} (residual {found.residual:.1e}, "
            f"{found.floor:.1e} is rounding): what is wrong is not which samples entered it",
            step=found.step,
            observed=found.residual,
            allowed=found.floor,
        )
    elif not found.wrong.any():
        yield writer.passed(
            f"{len(found.ids)} samples entered the gradient of step {found.step} with weight 1, at most {worst:.1e} "
            f"off, {found.allowed:.1e} allowed",
            step=found.step,
            observed=worst,
            allowed=found.allowed,
        )
    else:
        words = in_words(view, found)
        yield writer.failed(
            f"{words} ({int(found.wrong.sum())} of {len(found.ids)} weights are not 1, at most {worst:.1e} off, "
            f"{found.allowed:.1e} allowed; they leave a residual of {found.residual:.1e})",
            step=found.step,
            observed=worst,
            allowed=found.allowed,
            explanation=Explanation(
                sentence=diagnosis(view, found) or words, before=found.distance, after=found.residual
            ),
        )
