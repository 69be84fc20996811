"""Is the loss of the whole batch that of one device, and is it what was printed?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dist_checks.judging.factors import in_numbers
from dist_checks.judging.losses import Loss, losses
from dist_checks.judging.own import ATTACH, STEP, add
from dist_checks.judging.tolerance import EPS, Rule, within
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView, Writer

SUMMING = 4.0
"""Units in the last place by which two sums of one batch may differ. Seen: half a unit, 6e-8, between healthy rungs."""


def check(view: RungView) -> Iterator[Finding]:
    """The sum over data ranks of losses and of targets; a rank alone has the loss of its own samples, rightly."""
    writer = view.writer("loss")
    mine = losses(view.own)
    if not mine and view.own_loop and (view.trace.steps or view.log_only):
        asked = str((view.recipe.get("command") or {}).get("loss") or "")
        nothing = f"nothing that it prints fits command.loss ({asked})" if asked else "the script said no loss"
        yield writer.skipped(f"{nothing}: {add(ATTACH, STEP) if view.log_only else add(STEP)}")
        return
    if not mine:
        yield writer.unseen(f"no step was recorded by all ranks: {view.trace.cut}")
        return
    if (bad := next((loss for loss in mine.values() if not np.isfinite(loss.mean)), None)) is not None:
        yield writer.failed(
            f"the loss of step {bad.step} is not finite ({bad.sum} over {bad.targets} targets)",
            step=bad.step,
            observed=float("nan"),
        )
        return
    if (apart := next((loss for loss in mine.values() if loss.apart is not None), None)) is not None:
        assert apart.apart is not None
        one, other = apart.apart
        yield writer.failed(
            f"ranks {one} and {other} work on the same samples ({view.along(one, other)}) and have different losses at "
            f"step {apart.step}",
            step=apart.step,
            ranks=apart.apart,
        )
        return
    if refused := writer.incomparable():
        yield refused
        return
    yield _compared(view, writer, mine) or _printed(view, writer, mine)


def _compared(view: RungView, writer: Writer, mine: dict[int, Loss]) -> Finding | None:
    assert view.yard is not None
    yard = losses(view.yard)
    single = losses(view.reference) if view.reference is not None else {}
    for step in sorted(set(mine) & set(yard) & set(view.comparable_steps)):
        a, b = mine[step], yard[step]
        if a.targets != b.targets:
            return writer.failed(
                f"{a.targets} targets at step {step}, {view.yard.rung.id} has {b.targets}",
                step=step,
                observed=a.targets,
                allowed=b.targets,
                scale=a.targets / b.targets if b.targets else None,
            )
        observed, allowed = distance(view, a, b, single.get(step))
        if not within(observed, allowed):
            words = in_numbers(view, step, a.mean / b.mean, allowed) if b.mean else ""
            if view.log_only:
                words += "; " * bool(words) + "is what it prints that of all ranks and micro-batches?"
            return writer.failed(
                f"loss {a.mean:.6g} at step {step}, {view.yard.rung.id} has {b.mean:.6g}: {observed:.1e} off, "
                f"{allowed:.1e} allowed" + (f"; {words}" if words else ""),
                step=step,
                observed=observed,
                allowed=allowed,
                scale=a.mean / b.mean if b.mean else None,
            )
    return None


def distance(view: RungView, mine: Loss, yard: Loss, single: Loss | None) -> tuple[float, float]:
    """Relative distance from the yard, observed and allowed."""
    norm = np.array([abs(yard.mean) or 1.0])
    spread = np.array([abs(single.mean - yard.mean) if single else np.nan])
    if view.tolerance.rule is not Rule.TRUTH:
        spread = np.zeros(1)
    # A mean over many targets may be near the truth by chance, so rounding has the share of a whole group here.
    allowed = view.tolerance.allowed(norm, norm, spread, np.array([mine.step]))
    # One number cannot be nearer than its own rounding: a rank sums hundreds of targets up, in float32 at the least.
    allowed = allowed + SUMMING * EPS["float64" if view.rung.exact else "float32"] * norm
    allowed = allowed + mine.resolution + yard.resolution
    return abs(mine.mean - yard.mean) / float(norm[0]), float((allowed / norm)[0])


def _printed(view: RungView, writer: Writer, mine: dict[int, Loss]) -> Finding:
    """One wrong number on all ranks is wrong; different ones may be the ranks' own losses, and what is printed of one
    micro-batch alone is noisy (huggingface/pytorch-image-models#2339): both are only a habit."""
    note = ""
    for loss in mine.values():
        printed = {rank: value for rank, value in loss.printed.items() if value is not None}
        wrong = [rank for rank, value in printed.items() if not within(abs(value - loss.mean), 1e-6 * abs(loss.mean))]
        if not wrong:
            continue
        value = printed[wrong[0]]
        everybody = len(wrong) == len(printed) and max(printed.values()) - min(printed.values()) <= 1e-6 * abs(value)
        habits = (loss.own.get(wrong[0], np.nan), *loss.micro.get(wrong[0], ()))
        if everybody and not any(within(abs(value - habit), 1e-6 * abs(habit)) for habit in habits):
            return writer.failed(
                f"{value:.6g} was printed at step {loss.step}, the loss per target is {loss.mean:.6g}: only what is "
                "printed is wrong",
                step=loss.step,
                ranks=wrong,
                observed=value,
                allowed=loss.mean,
                scale=value / loss.mean if loss.mean else None,
            )
        note = note or f"; what rank {wrong[0]} prints at step {loss.step} ({value:.6g}) is not the loss of the batch"
    assert view.yard is not None
    steps = sorted(set(mine) & set(losses(view.yard)) & set(view.comparable_steps))
    if not steps:
        return writer.unseen(f"{view.yard.rung.id} has no step that could be compared")
    yard, single = losses(view.yard), losses(view.reference) if view.reference is not None else {}
    told = [(*distance(view, mine[step], yard[step], single.get(step)), step) for step in steps]
    observed, allowed, step = max(told, key=lambda item: item[0] / item[1])
    return writer.passed(
        f"loss and targets of {len(steps)} steps are those of {view.yard.rung.id}; nearest to failing: step {step}, "
        f"{observed:.1e} off, {allowed:.1e} allowed{note}",
        step=step,
        observed=observed,
        allowed=allowed,
    )
