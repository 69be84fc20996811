"""Is the gradient of a batch the sum of what its samples contribute? Else data ranks cannot work apart."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dist_checks.judging.logical import Key
from dist_checks.judging.tolerance import Rule, Tolerance, of_single
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.trace import NO_ITEM, Kind


def check(view: RungView) -> Iterator[Finding]:
    """On singles, at the first step. A loss over the whole batch (a balance loss) differs by 16 % between one and two
    data ranks, rightly: then the recipe is to blame, and no axis."""
    writer = view.writer("additive")
    if view.rung.reference is not None or view.rung.twin_of is not None:
        yield writer.skipped("the single tells whether the recipe is additive")
        return
    if view.own_loop:
        yield writer.skipped("a script's loop computes no gradients of single samples: a recipe would")
        return
    shares, gradients = view.own.full(Kind.SAMPLE_GRADIENT), view.own.full(Kind.GRADIENT)
    if not len(shares) or not len(gradients):
        yield writer.unseen("the gradients of single samples were not recorded")
        return
    step = int(shares.step[0])
    if view.dropout:
        yield writer.skipped("under dropout a sample alone is masked in another way than in its batch")
        return
    if view.own.skipped(step):
        yield writer.unseen(f"step {step} was skipped by the loss scaler")
        return
    names = [name for name in gradients.names if Key(name, step, NO_ITEM) in gradients.rows and name in shares.names]
    if not names:
        yield writer.unseen("no tensor has both a gradient and the gradients of its samples")
        return
    rows = np.array([gradients.rows[Key(name, step, NO_ITEM)] for name in names])
    sums = np.zeros((len(shares.names), shares.sketch.shape[1]))
    np.add.at(sums, shares.tensor, shares.sketch)
    left = np.linalg.norm(sums[[shares.names.index(name) for name in names]] - gradients.sketch[rows], axis=1)
    norm, zero = gradients.norm[rows], np.zeros(len(rows))
    total = zero + np.linalg.norm(norm)
    allowed = _tolerance(view).allowed(norm, total, zero, np.full(len(rows), step))
    unit = np.where(norm > 0, norm, np.where(total > 0, total, 1.0))
    bad = np.flatnonzero(~(left <= allowed))
    at = int(bad[0]) if bad.size else int(np.argmax(left / np.where(allowed > 0, allowed, 1.0)))
    count = len(np.unique(shares.item))
    observed, limit = float(left[at] / unit[at]), float(allowed[at] / unit[at])
    numbers = f"{observed:.1e} off, {limit:.1e} allowed"
    if bad.size:
        yield writer.failed(
            f"the gradients of {count} samples do not add up to that of their batch: {names[at]} is {numbers}; so "
            f"{len(bad)} of {len(names)} gradients. A loss must be a sum over samples divided by the number of targets",
            step=step,
            tensor=names[at],
            observed=observed,
            allowed=limit,
            blames=Blamed.RECIPE,
        )
    else:
        yield writer.passed(
            f"the gradients of {count} samples add up to that of their batch; nearest to failing: {names[at]}, "
            f"{numbers}",
            step=step,
            tensor=names[at],
            observed=observed,
            allowed=limit,
        )


def _tolerance(view: RungView) -> Tolerance:
    if view.rung.exact:
        return Tolerance(rule=Rule.REFERENCE, eps=view.narrowest)
    return of_single(view.rung.precision)
