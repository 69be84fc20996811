"""By how much each weight moved in each step: sketches are linear, so those of two moments can be subtracted."""

from __future__ import annotations

import numpy as np

from dist_checks.judging.logical import Full, Key
from dist_checks.judging.seen import Seen
from dist_checks.trace import BEFORE, NO_ITEM, Kind


def moves(seen: Seen) -> Full:
    """Digests of weight after - weight before, for each step that has both. Norms are estimates from the sketch; the
    fingerprint is 0 where no bit has changed."""
    weights = seen.full(Kind.WEIGHT)
    after, before = [], []
    for row in np.flatnonzero(weights.step >= 0).tolist():
        name, step, _ = weights.key(row)
        previous = weights.rows.get(Key(name, step - 1 if step else BEFORE, NO_ITEM))
        if previous is not None:
            after.append(row)
            before.append(previous)
    a, b = np.array(after, np.int64), np.array(before, np.int64)
    with np.errstate(invalid="ignore", over="ignore"):
        sketch = weights.sketch[a] - weights.sketch[b]
    return Full(
        names=weights.names,
        tensor=weights.tensor[a],
        step=weights.step[a],
        item=weights.item[a],
        fingerprint=weights.fingerprint[a] - weights.fingerprint[b],
        elements=weights.elements[a],
        nonfinite=weights.nonfinite[a] + weights.nonfinite[b],
        sum_squares=np.square(sketch).sum(1),
        sketch=sketch,
        partial=np.ones(len(a), bool),
        tiling=tuple(weights.tiling[row] for row in after),
        complete=weights.complete[a] & weights.complete[b],
        dtypes=weights.dtypes,
    )
