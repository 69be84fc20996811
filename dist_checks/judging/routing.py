"""Where tokens were sent to other experts: between two rungs, and how much of a difference that excuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
    parts: dict[tuple[int, str, int], dict[int, tuple[int, tuple[int, ...]]]] = {}
    ranks: dict[tuple[int, str, int], tuple[int, ...]] = {}
    apart = None
    choices = 1
    for rank in seen.trace.ranks:
        for event in rank.routing:
            step, router, choices = int(event["step"]), str(event["router"]), int(event["choices"])
            for item, experts in event["experts"].items():
                key, mine = (step, router, int(item)), tuple(experts)
                first, theirs = parts.setdefault(key, {}).setdefault(int(event.get("start", 0)), (rank.rank, mine))
                if theirs != mine and apart is None:
                    apart = *key, first, rank.rank
                ranks[key] = (*ranks.get(key, ()), rank.rank)
    found: dict[tuple[int, str], dict[int, tuple[int, ...]]] = {}
    for (step, router, sample), of_ranks in parts.items():
        whole = tuple(expert for start in sorted(of_ranks) for expert in of_ranks[start][1])
        found.setdefault((step, router), {})[sample] = whole
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one sample contributes to the gradient of a parameter: root mean squares over samples, relative to it."""

    norm: float
    along: float
    """The part that points the same way as the gradient."""


ALONG = 0.5
"""A token that goes elsewhere turns a gradient more than it stretches it. Of 77 gradients of healthy bf16 and fp16
rungs that it carried over their limits, none was off by more than 0.5 x norm x sqrt(tokens), nor stretched by
more than 0.23 x along x sqrt(tokens). Twice both is excused, so a wrong factor is still seen where few tokens went
elsewhere."""


def excuse(kind: Kind, found: Comparison, flipped: list[Flip], shares: Mapping[str, Share]) -> Floats:
    """What may be added to the limit of each row, where rounding sent tokens elsewhere: of a block's output, all of the
    output of the sample; of other tensors, what one sample contributes times the square root of the number of tokens.
    Nothing where the difference is more of a factor than they explain."""
    out = np.zeros(len(found))
    if not flipped:
        return out
    outputs = kind in (Kind.OUTPUT, Kind.OUTPUT_GRADIENT)
    here = {(flip.step, flip.item) for flip in flipped}
    last = max(flip.step for flip in flipped)
    # A step later they have changed weights as well.
    root = [sum(flip.tokens for flip in flipped if flip.step <= step) ** 0.5 for step in range(last + 1)]
    for row, key in enumerate(found.keys):
        share = shares.get(key.name)
        if outputs:
            out[row] = found.norm[row] if (key.step, key.item) in here else 0.0
        elif share is not None and key.item == NO_ITEM and key.step >= 0:
            tokens = root[min(key.step, last)]
            # A factor within the limit itself would have passed.
            factor = max(ALONG * share.along * tokens, found.allowed_relative[row])
            stretched = abs(found.scale[row] - 1) > factor
            out[row] = 0.0 if stretched else share.norm * tokens * found.norm[row]
    return out


def shares(seen: Seen | None) -> dict[str, Share]:
    """Of each parameter, from the gradients of single samples that ``seen`` has recorded."""
    if seen is None:
        return {}
    alone = seen.full(Kind.SAMPLE_GRADIENT)
    out: dict[str, Share] = {}
    for tensor, name in enumerate(alone.names):
        rows = np.flatnonzero(alone.tensor == tensor)
        whole = alone.sketch[rows].sum(0)
        square = float(whole @ whole)
        if square > 0:
            along = alone.sketch[rows] @ whole / square
            norm = float(np.sqrt(alone.sum_squares[rows].mean() / square))
            out[name] = Share(norm=norm, along=float(np.sqrt(np.square(along).mean())))
    return out


def excused_by_rounding(rule: Rule) -> bool:
    """In float64 a token that is sent elsewhere is a fault; in narrow numbers two experts may be all but equal."""
    return rule is not Rule.REFERENCE
