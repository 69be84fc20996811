"""What an error looks like, in words: an explanation counts only if undoing what it says repairs the tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dist_checks.axes import SPEC, Axis
from dist_checks.judging import displaced
from dist_checks.judging.comparison import Comparison
from dist_checks.judging.factors import Factor, factors, in_numbers, power_of_two
from dist_checks.judging.logical import Floats, Full, Ints, Key, Records
from dist_checks.judging.tolerance import worse
from dist_checks.judging.verdict import Explanation
from dist_checks.judging.view import RungView
from dist_checks.judging.words import subject
from dist_checks.trace import NO_ITEM, Kind

SNAP = 0.02
"""A fitted factor that is so near to one of the rung's numbers, relatively, is taken for it; then it has to repair."""

Rows = Ints


def explain(view: RungView, kind: Kind, found: Comparison, rows: Rows) -> Explanation | None:
    """The first explanation that repairs all of ``rows``, which fail at one step; None where none does."""
    return (
        scaled(view, kind, found, rows)
        or pieces(view, kind, found, rows)
        or term(view, kind, found, rows)
        or displaced.late(view, kind, found, rows)
        or displaced.late_parts(view, kind, found, rows)
        or displaced.rearranged(view, kind, found, rows)
    )


# Everything is a constant factor too large or too small


def scaled(view: RungView, kind: Kind, found: Comparison, rows: Rows) -> Explanation | None:
    """One factor for all of ``rows``: one of the rung's numbers where it is near one, else the fitted one."""
    # A tensor of rounding noise has any factor: those that fail most clearly decide.
    clear = rows[found.distance[rows] > 10 * found.allowed[rows]]
    weights = found.norm[clear]
    if not clear.size or not np.isfinite(found.scale[clear]).all() or not weights.sum() > 0:
        return None
    fitted = float(np.average(found.scale[clear], weights=weights))
    step = int(found.step[rows[0]])
    before = worse(found.observed[rows])
    candidates = [f for f in factors(view, step) if abs(f.value - fitted) <= SNAP * abs(f.value)]
    for factor in (*candidates, *power_of_two(fitted), Factor(value=fitted, words="")):
        left = _left_after_scaling(view, kind, found, rows, factor.value)
        if factor.value and (left <= abs(factor.value) * found.allowed[rows]).all():
            at_step = int((found.step == step).sum())
            whose = _all_experts(view, kind, found, rows) or subject(kind, len(rows), at_step)
            sentence = f"{whose} {factor.value:.4g} x {_yard_name(view)}"
            if factor.words:
                sentence += f": {factor.words}"
            after = worse(left / (abs(factor.value) * found.unit[rows]))
            return Explanation(sentence=sentence, before=before, after=after)
    return None


def _all_experts(view: RungView, kind: Kind, found: Comparison, rows: Rows) -> str:
    """``every gradient of the experts is``, where it is those and no others; else an empty string."""
    experts = set(view.recipe.get("experts") or ())
    if not experts or {found.keys[row].name for row in rows.tolist()} != experts:
        return ""
    return f"every {kind.value.replace('_', ' ')} of the experts is"


def _yard_name(view: RungView) -> str:
    return "the reference" if view.yard is view.reference else "the truth"


def _left_after_scaling(view: RungView, kind: Kind, found: Comparison, rows: Rows, factor: float) -> Floats:
    """Distances that are left when what was compared with is multiplied by ``factor``."""
    assert view.yard is not None
    mine, yard = view.own.full(kind), view.yard.full(kind)
    a, b = found.rows[rows], found.yard_rows[rows]
    left: Floats = np.sqrt(np.square(mine.sketch[a] - factor * yard.sketch[b]).sum(1))
    return left


# Each rank holds a piece and takes it for the whole


def pieces(view: RungView, kind: Kind, found: Comparison, rows: Rows) -> Explanation | None:
    """Adding or averaging what the ranks of an axis hold gives what they all should hold.

    So it is with norm weights under sequence parallelism whose gradients are never added up (NVIDIA/Megatron-LM#1446),
    and with gradients that are never reduced over data ranks (karpathy/build-nanogpt PR#30).
    """
    assert view.yard is not None
    given, mine, yard = view.own.records(kind), view.own.full(kind), view.yard.full(kind)
    a, b = found.rows[rows], found.yard_rows[rows]
    step = int(found.step[rows[0]])
    for axes in _axes_to_add(view):
        sums = _sums_over(view, given, mine, a, axes)
        if sums is None:
            continue
        members, sketch = sums
        name = " x ".join(axis.value for axis in axes)
        at_step = int((found.step == step).sum())
        for divisor, sentence in (
            (
                1,
                f"{subject(kind, len(rows), at_step)} held in {members} pieces by the {name} ranks, each taken for the "
                "whole: their sum is right",
            ),
            (
                members,
                f"{subject(kind, len(rows), at_step, past=True)} never reduced over {name}: the mean of what the "
                f"{members} ranks hold is right",
            ),
        ):
            left = np.sqrt(np.square(sketch / divisor - yard.sketch[b]).sum(1))
            if (left <= found.allowed[rows]).all():
                after = worse(left / found.unit[rows])
                return Explanation(sentence=sentence, before=worse(found.observed[rows]), after=after)
    return None


def _axes_to_add(view: RungView) -> list[tuple[Axis, ...]]:
    on = [axis for axis, degree in view.layout.degrees.items() if degree > 1]
    data = tuple(axis for axis in on if SPEC[axis].data)
    loss = tuple(axis for axis in on if SPEC[axis].data or SPEC[axis].sequence)
    return [*dict.fromkeys([*((axis,) for axis in on), *(axes for axes in (data, loss) if axes)])]


def _sums_over(
    view: RungView, given: Records, mine: Full, rows: Rows, axes: Sequence[Axis]
) -> tuple[int, Floats] | None:
    """(ranks in a group, sketches of the sums) of full tensors ``rows``; None where the ranks of ``axes`` hold
    different parts of a tensor, or one and the same thing."""
    members = len(view.layout.group(0, *axes))
    other = {
        rank: tuple(at for axis, at in view.layout.coordinates(rank).items() if axis not in axes)
        for rank in range(view.layout.world_size)
    }
    bounds = np.append(given.starts, len(given))
    wanted: dict[int, list[tuple[int, int]]] = {}  # rank -> (position in rows, record)
    differ, pieces = False, 1
    for at, row in enumerate(rows.tolist()):
        span = np.arange(bounds[row], bounds[row + 1])
        for part in np.split(span, np.flatnonzero(given.new_part[span])[1:]):
            home = other.get(int(given.rank[part[0]]))
            holders = [i for i in part.tolist() if other.get(int(given.rank[i])) == home]
            # Not every stage of a pipeline has a copy of a tied parameter; the others hold their tensors alone.
            if len(holders) != members and Axis.PP not in axes:
                return None
            pieces = max(pieces, len(holders))
            differ |= len(set(given.fingerprint[holders].tolist())) > 1
            for i in holders:
                wanted.setdefault(int(given.rank[i]), []).append((at, int(given.record[i])))
    if not differ:
        return None
    sketch = np.zeros((len(rows), mine.sketch.shape[1]))
    for rank, found in wanted.items():
        positions, indices = np.array(found, np.int64).T
        np.add.at(sketch, positions, view.trace.by_rank[rank].digests.take(indices)["sketch"])
    return pieces, sketch


# One term of the loss has another weight than it should


def term(view: RungView, kind: Kind, found: Comparison, rows: Rows) -> Explanation | None:
    """Another weight for one term of the loss, such as the balance of routers, gives what the rung holds.

    So it is where that term is weighed by the tokens of one rank's share (NVIDIA/Megatron-LM PR#5047).
    """
    assert view.yard is not None
    if kind is not Kind.GRADIENT:
        return None
    mine, yard, alone = view.own.full(kind), view.yard.full(kind), view.yard.full(Kind.TERM_GRADIENT)
    step = int(found.step[rows[0]])
    for name in dict.fromkeys(name.rpartition("/")[2] for name in alone.names):
        at = [alone.rows.get(Key(f"{found.keys[row].name}/{name}", step, NO_ITEM), -1) for row in rows.tolist()]
        if min(at) < 0:
            continue
        share = alone.sketch[at]
        off = mine.sketch[found.rows[rows]] - yard.sketch[found.yard_rows[rows]]
        more = float((share * off).sum() / np.square(share).sum())
        left = np.linalg.norm(off - more * share, axis=1)
        if not (left <= found.allowed[rows]).all():
            continue
        # Where it weighs most: that is what it is about.
        weights = {
            key.name: float(alone.norm[alone.rows.get(Key(f"{key.name}/{name}", step, NO_ITEM), 0)]) / found.unit[row]
            for row, key in enumerate(found.keys)
            if key.step == step
        }
        words = in_numbers(view, step, 1 + more)
        sentence = f"the {name} term entered with weight {1 + more:.4g}{': ' if words else ''}{words}"
        return Explanation(
            sentence=f"{sentence}; it weighs most in {max(weights, key=weights.__getitem__)}",
            before=worse(found.observed[rows]),
            after=worse(left / found.unit[rows]),
        )
    return None
