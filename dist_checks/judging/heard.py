"""What is learned, by the recipe's word, or heard where a script calls its loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dist_checks.judging.losses import losses
from dist_checks.judging.view import RungView

SURE = 0.9
"""Share of the targets that are the token at one offset, for a script to be one that foretells tokens."""
CLOSE = 0.02
"""Text that repeats itself fits several offsets."""
NEXT = 1

UNHEARD = (
    "no cross-entropy was heard: the script's loss is another one, or is computed by a kernel of its own or in a graph "
    "of torch.compile"
)


def heard(view: RungView) -> Mapping[str, Any]:
    """Of the first step of a script; empty where nothing was heard, or the loop is not a script's."""
    found = next(iter(view.observed("heard")), {})
    return {} if found.get("missing") else found


def classes(view: RungView) -> int | None:
    """That the loss chooses from."""
    told = view.recipe.get("classes") or heard(view).get("classes")
    return int(told) if told else None


def offset(view: RungView) -> int | None:
    """How many places on in the sample the targets of a script are; None where they are no tokens of it."""
    shares = {int(at): float(share) for at, share in (heard(view).get("offsets") or {}).items()}
    best = max(shares, key=lambda at: shares[at], default=NEXT)
    if shares.get(NEXT, 0.0) >= max(SURE, shares.get(best, 0.0) - CLOSE):
        return NEXT
    return best if shares.get(best, 0.0) >= SURE else None


def next_token(view: RungView) -> bool:
    """Whether the model foretells the next token of a text."""
    return bool(view.recipe.get("next_token")) or offset(view) == NEXT


def starts_trained(view: RungView) -> bool | None:
    """Before the first step; None where a script does not say."""
    if view.own_loop:
        told = view.recipe["command"].get("starts_trained")
        return None if told is None else bool(told)
    return bool(view.recipe.get("starts_trained"))


def curve(view: RungView) -> dict[int, float]:
    """The loss of each step per target, in nats: the cross-entropy of a script where it was heard in every step, for
    what the script calls its loss may have other terms, or another scale; else its loss as recorded."""
    found = losses(view.own)
    told = {step: view.trace.ranks[0].steps[step].get("cross_entropy") for step in found}
    if told and all(told.values()):
        return {step: float(pair[0]) / float(pair[1]) for step, pair in told.items() if pair}
    return {step: loss.mean for step, loss in found.items()}
