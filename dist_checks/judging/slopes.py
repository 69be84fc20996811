"""By how much the steps of the optimizer should have changed the loss, had it been a plane: uphill or downhill?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dist_checks.judging.logical import Key
from dist_checks.judging.losses import losses
from dist_checks.judging.moves import moves
from dist_checks.judging.seen import Seen
from dist_checks.trace import NO_ITEM, Kind

EARLY = 10
"""Steps, in which a learning rate that warms up is still low."""

AGREES = 0.3
"""Part of what the slope foretells: batches differ, and the loss is no plane. A step that is far too long foretells
many times more than the loss can change."""


def foretold(seen: Seen) -> Mapping[int, float]:
    """Of each step with both, the sum over parameters of gradient times move, in the unit of the loss."""
    gradients, steps = seen.full(Kind.GRADIENT), moves(seen)
    out: dict[int, float] = {}
    for row in range(len(steps)):
        key = steps.key(row)
        if (at := gradients.rows.get(Key(key.name, key.step, NO_ITEM))) is not None:
            product = float(np.dot(gradients.sketch[at], steps.sketch[row]))
            out[key.step] = out.get(key.step, 0.0) + product
    return out


def wrong_way(seen: Seen) -> bool | None:
    """Whether the loss was led upwards from the first steps on: moves go up the recorded gradient, or the loss rises by
    as much as that says it falls. None where too little was recorded."""
    told, found = foretold(seen), losses(seen)
    steps = sorted(step for step in told if step in found and step + 1 in found)[:EARLY]
    if len(steps) < EARLY // 2:
        return None
    slope = sum(told[step] for step in steps)
    rise = found[steps[-1] + 1].mean - found[steps[0]].mean
    return slope > 0 or rise > AGREES * abs(slope)
