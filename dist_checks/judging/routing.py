"""Where tokens were sent to other experts: between two rungs, and how much of a difference that excuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dist_checks.judging.comparison import Comparison
from dist_checks.judging.logical import Floats
from dist_checks.judging.seen import Seen
from dist_checks.judging.tolerance import Rule
from dist_checks.trace import NO_ITEM, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """Tokens of one sample that one router sent to other experts than the router of another rung did."""

    step: int
    router: str
    item: int
    tokens: int
    ranks: tuple[int, ...]
    """That computed the sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """All choices of a rung: by step, router in forward order and sample."""

    of: Mapping[tuple[int, str], Mapping[int, tuple[int, ...]]]
    choices: int
    """Of each token."""
    ranks: Mapping[tuple[int, str, int], tuple[int, ...]]
    apart: tuple[int, str, int, int, int] | None
    """(step, router, sample, rank, rank) where two ranks that compute one sample disagree."""


def routes(seen: Seen) -> Routes:
    found: dict[tuple[int, str], dict[int, tuple[int, ...]]] = {}
    ranks: dict[tuple[int, str, int], tuple[int, ...]] = {}
    apart = None
    choices = 1
    for rank in seen.trace.ranks:
        for event in rank.routing:
            step, router, choices = int(event["step"]), str(event["router"]), int(event["choices"])
            samples = found.setdefault((step, router), {})
            for item, experts in event["experts"].items():
                sample, mine = int(item), tuple(experts)
                if samples.setdefault(sample, mine) != mine and apart is None:
                    apart = step, router, sample, ranks[step, router, sample][0], rank.rank
                ranks[step, router, sample] = (*ranks.get((step, router, sample), ()), rank.rank)
    return Routes(of=found, choices=choices, ranks=ranks, apart=apart)


def flips(mine: Routes, theirs: Routes) -> Iterator[Flip]:
    """Of what both have recorded, in the order of steps and routers."""
    for (step, router), samples in sorted(mine.of.items(), key=lambda item: item[0][0]):
        other = theirs.of.get((step, router), {})
        for item, experts in samples.items():
            if item in other and other[item] != experts:
                yield Flip(
                    step=step,
                    router=router,
                    item=item,
                    tokens=_different(experts, other[item], mine.choices),
                    ranks=mine.ranks[step, router, item],
                )


def _different(one: tuple[int, ...], two: tuple[int, ...], choices: int) -> int:
    if len(one) != len(two):
        return max(len(one), len(two)) // choices
    a, b = (np.array(each).reshape(-1, choices) for each in (one, two))
    return int((a != b).any(1).sum())


def tokens(routes: Routes, step: int) -> int:
    """How many were routed at a step, over all routers and samples."""
    return sum(
        len(experts) // routes.choices
        for (at, _), samples in routes.of.items()
        if at == step
        for experts in samples.values()
    )


SCALED = 3.0 / 8
"""A difference that is mostly a factor is no matter of routing: noise of relative size d turns a fitted factor by about
d / 8 from 1 (a sketch has 64 buckets), so three times that is the limit."""


def excuse(kind: Kind, found: Comparison, flipped: list[Flip], shares: Mapping[str, float]) -> Floats:
    """What may be added to the limit of each row, where rounding sent tokens elsewhere: of a block's output, all of the
    output of the sample; of other tensors, what one sample contributes, for each sample with such a token.

    ``shares`` are the norms of one sample's contribution to a gradient relative to that gradient.
    """
    out = np.zeros(len(found))
    if not flipped:
        return out
    samples: dict[int, set[int]] = {}
    for flip in flipped:
        samples.setdefault(flip.step, set()).add(flip.item)
    outputs = kind in (Kind.OUTPUT, Kind.OUTPUT_GRADIENT)
    for row, key in enumerate(found.keys):
        # A step later it has changed weights as well.
        there = {item for step, items in samples.items() if step <= key.step for item in items}
        if outputs:
            out[row] = found.norm[row] if key.item in samples.get(key.step, ()) else 0.0
        elif key.item == NO_ITEM and there and kind is not Kind.BUFFER and key.step >= 0:
            out[row] = len(there) ** 0.5 * shares.get(key.name, 0.0) * found.norm[row]
    scaled = np.abs(found.scale - 1) > SCALED * found.observed
    return np.where(scaled & (found.cosine > 0.99) & (not outputs), 0.0, out)


def shares(seen: Seen | None) -> dict[str, float]:
    """By parameter: the root mean square, over samples, of the norm of a sample's gradient over that of their sum."""
    if seen is None:
        return {}
    alone = seen.full(Kind.SAMPLE_GRADIENT)
    out: dict[str, Any] = {}
    for tensor, name in enumerate(alone.names):
        rows = np.flatnonzero(alone.tensor == tensor)
        whole = float(np.linalg.norm(alone.sketch[rows].sum(0)))
        out[name] = float(np.sqrt(alone.sum_squares[rows].mean())) / whole if whole else 0.0
    return out


def excused_by_rounding(rule: Rule) -> bool:
    """In float64 a token that is sent elsewhere is a fault; in narrow numbers two experts may be all but equal."""
    return rule is not Rule.REFERENCE
