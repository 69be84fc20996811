"""Right values in a wrong place or at a wrong time: parts that are a step late, shards that are swapped."""

from __future__ import annotations

import numpy as np

from dist_checks.judging.comparison import Comparison
from dist_checks.judging.logical import Ints, Key
from dist_checks.judging.tolerance import worse
from dist_checks.judging.verdict import Explanation
from dist_checks.judging.view import RungView
from dist_checks.judging.words import subject
from dist_checks.trace import Kind

CLEAR = 10.0
"""Times what is allowed: below it a rearrangement is not told from other small errors, whose norms agree as well."""


def late(view: RungView, kind: Kind, found: Comparison, rows: Ints) -> Explanation | None:
    """Each tensor is what the reference had in the step before: a buffer that was reduced and not waited for, or one
    that was used again (deepspeedai/DeepSpeed PR#7965)."""
    assert view.yard is not None
    mine, yard = view.own.full(kind), view.yard.full(kind)
    before = _before(found, rows, yard.rows)
    if before is None:
        return None
    left = np.sqrt(np.square(mine.sketch[found.rows[rows]] - yard.sketch[before]).sum(1))
    if not (left <= found.allowed[rows]).all():
        return None
    at_step = int((found.step == found.step[rows[0]]).sum())
    return Explanation(
        sentence=f"{subject(kind, len(rows), at_step)} that of the step before: a step late",
        before=worse(found.observed[rows]),
        after=worse(left / found.unit[rows]),
    )


def late_parts(view: RungView, kind: Kind, found: Comparison, rows: Ints) -> Explanation | None:
    """What some ranks hold has the bits of the step before, where it was right together with the parts of the others:
    the shards of these ranks are stale. Put back beside the others' of that step, the tensor is the reference's."""
    assert view.yard is not None
    given, mine, yard = view.own.records(kind), view.own.full(kind), view.yard.full(kind)
    own, others = _before(found, rows, mine.rows), _before(found, rows, yard.rows)
    if own is None or others is None:
        return None
    bounds = np.append(given.starts, len(given))
    stale: set[int] = set()
    for row, previous in zip(found.rows[rows].tolist(), own.tolist(), strict=True):
        now = {(int(given.rank[i]), int(given.part[i])): given.fingerprint[i] for i in range(*bounds[row : row + 2])}
        then = {
            (int(given.rank[i]), int(given.part[i])): given.fingerprint[i]
            for i in range(*bounds[previous : previous + 2])
        }
        here = {rank for (rank, part), bits in now.items() if bits and then.get((rank, part)) == bits}
        if not here or len(here) == len(now):
            return None
        stale |= here
    left = np.sqrt(np.square(mine.sketch[own] - yard.sketch[others]).sum(1))
    if not (left <= found.allowed[rows]).all():
        return None
    at_step = int((found.step == found.step[rows[0]]).sum())
    who = f"rank {min(stale)} holds" if len(stale) == 1 else f"ranks {', '.join(map(str, sorted(stale)))} hold"
    return Explanation(
        sentence=f"{subject(kind, len(rows), at_step)} stale in part: what {who} of it has the bits of the step before",
        before=worse(found.observed[rows]),
        after=worse(left / found.unit[rows]),
    )


def rearranged(view: RungView, kind: Kind, found: Comparison, rows: Ints) -> Explanation | None:
    """The values are those of the reference, in other places: shards that were swapped, or parts read in another order.

    Norm and largest magnitude do not depend on places. That both are right, where the tensor is far from right, is the
    repair; the residual is that of the norm.
    """
    assert view.yard is not None
    mine, yard = view.own.full(kind), view.yard.full(kind)
    a, b = found.rows[rows], found.yard_rows[rows]
    if (mine.partial[a] | yard.partial[b]).any() or not (found.distance[rows] > CLEAR * found.allowed[rows]).all():
        return None
    left = np.abs(mine.norm[a] - yard.norm[b])
    # What rounding may do to a norm is less than to the tensor: it goes into all directions.
    if not (left <= found.allowed[rows] / CLEAR).all():
        return None
    largest = view.own.largest(kind)[a], view.yard.largest(kind)[b]
    if not (np.abs(largest[0] - largest[1]) <= found.allowed[rows]).all():
        return None
    at_step = int((found.step == found.step[rows[0]]).sum())
    return Explanation(
        sentence=f"{subject(kind, len(rows), at_step)} made of the reference's values in other places: norm and "
        "largest value are right, so shards were swapped, or read in another order",
        before=worse(found.observed[rows]),
        after=worse(left / found.unit[rows]),
    )


def _before(found: Comparison, rows: Ints, known: dict[Key, int]) -> Ints | None:
    """The rows of the step before; None where one of them is not ``known``."""
    keys = (found.keys[row] for row in rows.tolist())
    before = [known.get(Key(key.name, key.step - 1, key.item), -1) for key in keys]
    return None if min(before) < 0 else np.array(before, np.int64)
