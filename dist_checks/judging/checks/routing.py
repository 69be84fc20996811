"""Was each token sent to the experts that it is sent to on one device?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.axes import Axis
from dist_checks.judging.routing import Flip, Routes, flips, routes, tokens
from dist_checks.judging.tolerance import NEAR, Rule
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView

CHANCE = 8
"""So many flips more than twice those of the single are still chance, where both have few."""


def check(view: RungView) -> Iterator[Finding]:
    """In float64 any difference is a fault, at the first router that differs. In narrow numbers two experts may be all
    but equal, so some tokens go elsewhere, as they do on one device with the same numbers: rounding, up to about as
    many."""
    writer = view.writer("routing")
    mine = routes(view.own)
    if not mine.of:
        yield writer.skipped(f"no router was recorded: {_why_none(view)}")
        return
    if mine.apart is not None:
        step, router, item, one, other = mine.apart
        yield writer.failed(
            f"ranks {one} and {other} both compute sample {item} ({view.along(one, other)}), and {router} sends its "
            "tokens to different experts",
            step=step,
            tensor=router,
            ranks=(one, other),
        )
        return
    if refused := writer.incomparable():
        yield refused
        return
    assert view.yard is not None
    yard = routes(view.yard)
    steps = [step for step in view.comparable_steps if any(at == step for at, _ in mine.of)]
    found = [flip for flip in flips(mine, yard) if flip.step in steps]
    yield from _judged(view, mine, found, steps)
    if unseen := sum(len(set(yard.of[key]) - set(mine.of.get(key, ()))) for key in yard.of if key[0] in steps):
        total = sum(len(samples) for (step, _), samples in yard.of.items() if step in steps)
        yield writer.skipped(f"of {unseen} of {total} samples the choices of a router were not recorded")


def _why_none(view: RungView) -> str:
    if Axis.COMPILE in view.rung.setting:
        return "inside a graph of torch.compile none can be"
    return "nothing is routed, or the recipe does not say where"


def _judged(view: RungView, mine: Routes, found: list[Flip], steps: list[int]) -> Iterator[Finding]:
    writer = view.writer("routing")
    assert view.yard is not None
    for step in steps:
        here = [flip for flip in found if flip.step == step]
        count, total = sum(flip.tokens for flip in here), tokens(mine, step)
        allowed = _allowed(view, step, total)
        if count > allowed:
            first = here[0]
            ranks = sorted({rank for flip in here if flip.router == first.router for rank in flip.ranks})
            yield writer.failed(
                f"{count} of {total} tokens were routed to other experts than in {view.yard.rung.id} at step {step}, "
                f"{allowed:.0f} allowed; first by {first.router}, {first.tokens} of sample {first.item}",
                step=step,
                tensor=first.router,
                ranks=ranks,
                observed=count,
                allowed=allowed,
            )
            return
    count, total = sum(flip.tokens for flip in found), sum(tokens(mine, step) for step in steps)
    yield writer.passed(
        f"{count} of {total} tokens were routed to other experts than in {view.yard.rung.id}"
        + (", which rounding explains" if count else ""),
        observed=count,
        allowed=max((_allowed(view, step, tokens(mine, step)) for step in steps), default=0),
    )


def _allowed(view: RungView, step: int, total: int) -> float:
    match view.tolerance.rule:
        case Rule.REFERENCE:
            return 0.0
        case Rule.TRUTH:
            assert view.reference is not None
            assert view.truth is not None
            single = flips(routes(view.reference), routes(view.truth))
            return NEAR * sum(flip.tokens for flip in single if flip.step == step) + CHANCE
        case Rule.ROUNDING:
            # Probabilities are off by about eps of themselves. Seen: 24 of 2566 in bf16, 7 in fp16.
            return CHANCE + 4 * view.tolerance.eps * total
