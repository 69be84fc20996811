"""Two sets of full tensors side by side: how far each is from what it should be, and how far it may be."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dist_checks.judging.logical import Floats, Full, Ints, Key
from dist_checks.judging.tolerance import Rule, Tolerance
from dist_checks.trace import NO_ITEM


@dataclass(frozen=True)
class Comparison:
    """One row for each tensor that both sides hold completely, ordered by step, then as recorded, then by item."""

    keys: tuple[Key, ...]
    step: Ints
    distance: Floats
    """Absolute; NaN where either side is not finite."""
    norm: Floats
    """Of what is compared with."""
    total: Floats
    """Of all tensors of its group and step."""
    allowed: Floats
    """Absolute."""
    spread: Floats
    """How far the single of the same precision is from the truth, absolute; 0 where that is not what decides."""
    scale: Floats
    """Least-squares factor to what is compared with."""
    cosine: Floats
    rows: Ints
    """Of the rung's own Full."""
    yard_rows: Ints
    missing: tuple[Key, ...]
    """What the other side holds, with a norm above what may be lost in rounding, and the rung does not."""
    incomplete: tuple[Key, ...]
    """What the rung does not hold completely."""
    excuse: Floats | float = 0.0
    """Absolute: what is to be added to ``allowed`` before a row fails. Between the two it is not judged."""

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def ok(self) -> NDArray[np.bool_]:
        return self.distance <= self.allowed + self.excuse  # False for NaN

    @cached_property
    def excused(self) -> NDArray[np.bool_]:
        """Rows that are not judged."""
        return self.ok & ~(self.distance <= self.allowed)

    @cached_property
    def unit(self) -> Floats:
        """What ``observed`` is relative to: the tensor's norm, or its group's where it has none."""
        norm = np.where(self.norm > 0, self.norm, self.total)
        return np.where(norm > 0, norm, 1.0)

    @cached_property
    def observed(self) -> Floats:
        """Relative distance."""
        return self.distance / self.unit

    @cached_property
    def allowed_relative(self) -> Floats:
        return self.allowed / self.unit

    @cached_property
    def strain(self) -> Floats:
        """Distance over what is allowed: above 1 is a failure. Infinite for NaN."""
        with np.errstate(divide="ignore", invalid="ignore"):
            strain = np.where(self.distance == 0, 0.0, self.distance / self.allowed)
        return np.where(np.isnan(strain), np.inf, strain)

    @property
    def truth_ratio(self) -> float | None:
        """Largest distance from the truth over that of the single, of the tensors for which that is what decides."""
        decides = self.spread > self.allowed / 4
        return float((self.distance[decides] / self.spread[decides]).max()) if decides.any() else None

    def take(self, order: Ints) -> Comparison:
        """The same rows in another order, or some of them."""
        excuse = self.excuse[order] if isinstance(self.excuse, np.ndarray) else self.excuse
        columns = ("step", "distance", "norm", "total", "allowed", "spread", "scale", "cosine", "rows", "yard_rows")
        keys = tuple(self.keys[row] for row in order.tolist())
        return replace(self, keys=keys, excuse=excuse, **{name: getattr(self, name)[order] for name in columns})

    def worst(self) -> int:
        """The row that is nearest to failing, or furthest beyond it, of those that are judged."""
        return int(np.argmax(np.where(self.excused, -1.0, self.strain)))

    def first_failing(self) -> Ints:
        """All failing rows of the earliest step that has one."""
        bad = np.flatnonzero(~self.ok)
        return bad[self.step[bad] == self.step[bad].min()] if bad.size else bad


def compare(
    mine: Full,
    yard: Full,
    tolerance: Tolerance,
    *,
    single: Full | None = None,
    steps: Collection[int] | None = None,
    factor: float = 1.0,
) -> Comparison:
    """``mine`` against ``factor`` times ``yard``; ``single`` says how far rounding goes (see Rule.TRUTH).

    Only steps among ``steps``, where that is given.
    """
    a, b = _common(mine, yard, steps)
    reach = set(np.unique(mine.step).tolist())
    lost = [
        yard.key(row)
        for row in np.flatnonzero(yard.complete).tolist()
        if int(yard.step[row]) in reach and (steps is None or int(yard.step[row]) in steps)
        if yard.item[row] == NO_ITEM and yard.key(row) not in mine.rows
        if not yard.sum_squares[row] <= 0
    ]
    partly = [mine.key(row) for row in np.flatnonzero(~mine.complete).tolist()]
    norm = factor * yard.norm[b]
    total = factor * _totals(yard)[b]
    distance = distances(mine, a, yard, b, factor)
    spread = np.zeros(len(a))
    if tolerance.rule is Rule.TRUTH:
        spread = _spread(mine, a, yard, b, single, factor)
    dot = np.einsum("ij,ij->i", mine.sketch[a], factor * yard.sketch[b])
    mine_square = np.square(mine.sketch[a]).sum(1)
    yard_square = np.square(factor * yard.sketch[b]).sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale, cosine = dot / yard_square, dot / np.sqrt(mine_square * yard_square)
    return Comparison(
        keys=tuple(mine.key(row) for row in a.tolist()),
        step=mine.step[a],
        distance=distance,
        norm=norm,
        total=total,
        allowed=tolerance.allowed(norm, total, spread, mine.step[a]),
        spread=spread,
        scale=scale,
        cosine=cosine,
        rows=a,
        yard_rows=b,
        missing=tuple(lost),
        incomplete=tuple(partly),
    )


def distances(mine: Full, a: Ints, yard: Full, b: Ints, factor: float = 1.0) -> Floats:
    """|a - b| of full tensors, from their sketches and norms; NaN where an element is not finite.

    The sketch estimates it (64 buckets: 10 % or so off); | |a| - |b| | is never above it, and is exact.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        estimate = np.sqrt(np.square(mine.sketch[a] - factor * yard.sketch[b]).sum(1))
        norms = np.abs(mine.norm[a] - factor * yard.norm[b])
    norms = np.where(mine.partial[a] | yard.partial[b], 0.0, norms)
    finite = (mine.nonfinite[a] == 0) & (yard.nonfinite[b] == 0)
    return np.where(finite, np.maximum(estimate, norms), np.nan)


def _spread(mine: Full, a: Ints, yard: Full, b: Ints, single: Full | None, factor: float) -> Floats:
    """How far the single of the same precision is from the truth, for each of rows ``a``; NaN where that is unknown.

    Of samples, the larger of its own distance and the root mean square over the samples: some are near by chance.
    """
    rows = single.rows if single is not None else {}
    found = np.array([rows.get(mine.key(row), -1) for row in a.tolist()], np.int64)
    spread = np.full(len(a), np.nan)
    have = found >= 0
    if single is not None and have.any():
        spread[have] = factor * distances(single, found[have], yard, b[have])
        group, items = _group(mine, a), mine.item[a] != NO_ITEM
        square = np.bincount(group, np.where(items, spread, 0.0) ** 2)
        count = np.bincount(group)
        mean = np.sqrt(square / np.maximum(count, 1))[group]
        spread = np.where(items, np.maximum(spread, mean), spread)
    return spread


def _common(mine: Full, yard: Full, steps: Collection[int] | None) -> tuple[Ints, Ints]:
    pairs = []
    for key, row in mine.rows.items():
        other = yard.rows.get(key)
        if other is not None and mine.complete[row] and yard.complete[other] and (steps is None or key.step in steps):
            pairs.append((key.step, row, other))
    pairs.sort()
    table = np.array(pairs, np.int64).reshape(-1, 3)
    return table[:, 1], table[:, 2]


def _group(given: Full, rows: Ints) -> Ints:
    """Of tensors: all of one step. Of samples: those of one tensor and step."""
    items = given.item[rows] != NO_ITEM
    code = np.where(items, given.tensor[rows] + 1, 0) * (int(given.step.max(initial=0)) + 2) + given.step[rows] + 1
    return np.unique(code, return_inverse=True)[1].reshape(-1)


def _totals(given: Full) -> Floats:
    """Norm of all tensors of a step together; of samples, the root mean square over them."""
    rows = np.arange(len(given))
    if not len(rows):
        return np.zeros(0)
    group = _group(given, rows)
    finite = np.where(np.isfinite(given.sum_squares), given.sum_squares, 0.0)
    square, count = np.bincount(group, finite), np.bincount(group)
    items = given.item != NO_ITEM
    return np.sqrt(square[group] / np.where(items, count[group], 1))
