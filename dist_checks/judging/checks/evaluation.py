"""Is what is evaluated after the last step each held-out sample, once?"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from dist_checks.axes import Axis, Layout
from dist_checks.judging.checks.loss import distance
from dist_checks.judging.losses import Loss
from dist_checks.judging.seen import Seen
from dist_checks.judging.tolerance import within
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView, Writer

ONLY = "only the metric is wrong, not what is trained"


def check(view: RungView) -> Iterator[Finding]:
    """A sampler that gives all ranks equally many repeats some samples, and metrics count them
    (Lightning-AI/pytorch-lightning#4732). The loss over them is that of the reference."""
    writer = view.writer("evaluation")
    wanted = int(view.recipe.get("held_out") or 0)
    if reason := _not_evaluated(view, wanted):
        yield writer.skipped(reason)
        return
    told = _by_part(view.own)
    if len(told) < view.layout.loss_parts:
        because = view.trace.cut or "it was not recorded"
        yield writer.unseen(f"what {view.layout.loss_parts - len(told)} data ranks evaluated was not seen: {because}")
        return
    yield _counted(view, writer, wanted) or _compared(view, writer, told, wanted)


def _not_evaluated(view: RungView, wanted: int) -> str:
    if not wanted:
        return "the recipe holds no samples out"
    if Axis.PP in view.rung.setting:
        return "a pipeline does not evaluate"
    if wanted < view.layout.data_size:
        return f"{wanted} samples are fewer than {view.layout.data_size} data ranks"
    return ""


def _by_part(seen: Seen) -> dict[tuple[int, ...], Mapping[str, Any]]:
    """Of each part of the samples and of their tokens, what its first rank says."""
    layout = Layout(seen.rung.setting)
    out: dict[tuple[int, ...], Mapping[str, Any]] = {}
    for rank in seen.trace.ranks:
        if rank.evaluation is not None and rank.rank < layout.world_size:
            out.setdefault(layout.loss_part(rank.rank), rank.evaluation)
    return out


def _counted(view: RungView, writer: Writer, wanted: int) -> Finding | None:
    first = int(view.recipe.get("samples") or 0)
    found: Counter[int] = Counter()
    for ranks in view.data_ranks().values():
        found.update((view.trace.by_rank[ranks[0]].evaluation or {}).get("ids") or ())
    again = sorted(id for id, count in found.items() if count > 1)
    lost = sorted(set(range(first, first + wanted)) - set(found))
    extra = sorted(set(found) - set(range(first, first + wanted)))
    told = [
        f"{words} {', '.join(map(str, ids[:5]))}{' and more' * (len(ids) > 5)}"
        for words, ids in (("counted more than once:", again), ("left out:", lost), ("not held out:", extra))
        if ids
    ]
    if not told:
        return None
    return writer.failed(
        f"{found.total()} samples are evaluated, {wanted} are held out; {'; '.join(told)}: {ONLY}",
        step=view.stop,
        observed=found.total(),
        allowed=wanted,
    )


def _compared(
    view: RungView, writer: Writer, told: Mapping[tuple[int, ...], Mapping[str, Any]], wanted: int
) -> Finding:
    mine = _loss(view, told)
    each = f"{wanted} samples that are held out are evaluated once"
    wrong = next((event["printed_loss"] for event in told.values() if _misprinted(event, mine.mean)), None)
    if wrong is not None:
        return writer.failed(
            f"{wrong:.6g} was printed for samples that are held out, their loss per target is {mine.mean:.6g}: {ONLY}",
            step=view.stop,
            observed=wrong,
            allowed=mine.mean,
        )
    yard = None if view.no_yard or view.not_comparable or view.yard is None else _by_part(view.yard)
    if not yard or view.comparable_steps[-1:] != (view.stop - 1,):
        return writer.passed(f"{each}, loss {mine.mean:.6g}", step=view.stop, observed=0, allowed=0)
    single = _by_part(view.reference) if view.reference is not None else {}
    theirs = _loss(view, yard)
    observed, allowed = distance(view, mine, theirs, _loss(view, single) if single else None)
    assert view.yard is not None
    numbers = f"{observed:.1e} off, {allowed:.1e} allowed"
    if not within(observed, allowed):
        return writer.failed(
            f"loss {mine.mean:.6g} over held-out samples, {view.yard.rung.id} has {theirs.mean:.6g}: {numbers}",
            step=view.stop,
            observed=observed,
            allowed=allowed,
        )
    return writer.passed(
        f"{each}, with the loss of {view.yard.rung.id}: {numbers}", step=view.stop, observed=observed, allowed=allowed
    )


def _misprinted(event: Mapping[str, Any], mean: float) -> bool:
    """Neither the loss of all that is held out, nor that of the rank's own part, which is only a habit
    (aigc-apps/VideoX-Fun#222)."""
    value = event["printed_loss"]
    own = event["loss_sum"] / event["targets"] if event["targets"] else math.nan
    return value is not None and not any(within(abs(value - right), 1e-6 * abs(right)) for right in (mean, own))


def _loss(view: RungView, told: Mapping[tuple[int, ...], Mapping[str, Any]]) -> Loss:
    return Loss(
        step=view.stop - 1,
        sum=math.fsum(event["loss_sum"] for event in told.values()),
        targets=sum(event["targets"] for event in told.values()),
        printed={},
        own={},
        micro={},
        apart=None,
    )
