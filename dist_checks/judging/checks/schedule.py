"""Is the learning rate of each step that of the reference, on every rank?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dist_checks.axes import Axis
from dist_checks.judging.reading import Step
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView

ROUNDING = 1e-12
"""Relative: the same formula in Python floats."""


def check(view: RungView) -> Iterator[Finding]:
    """Also: does the loss scaler skip the same steps? Where it does not, later steps cannot be compared."""
    writer = view.writer("schedule")
    yard = view.reference or view.truth
    if view.is_truth:
        yield writer.skipped(view.no_yard)
        return
    if yard is None or not yard.trace.steps:
        yield writer.unseen(f"{view.rung.reference or view.rung.truth} left no trace")
        return
    steps = [step for step in view.trace.steps if step in set(yard.trace.steps)]
    if not steps or not any(_rates(rank.steps[step]) for rank in view.trace.ranks for step in steps):
        yield writer.unseen(f"no learning rates were recorded{': ' + view.trace.cut if view.trace.cut else ''}")
        return
    theirs = yard.trace.ranks[0].steps
    some = Axis.PP in view.rung.setting  # a stage may have no parameter of some group
    for step in steps:
        for rank in view.trace.ranks:
            mine, wanted = _rates(rank.steps[step]), _rates(theirs[step])
            if not _equal(mine, wanted) and not (some and mine and set(mine) <= set(wanted)):
                yield writer.failed(
                    f"rank {rank.rank} has learning rates {_words(mine)} at step {step}, {yard.rung.id} has "
                    f"{_words(wanted)}",
                    step=step,
                    ranks=(rank.rank,),
                    observed=mine[0] if mine else math.nan,
                    allowed=wanted[0] if wanted else math.nan,
                    scale=mine[0] / wanted[0] if mine and wanted and wanted[0] else None,
                )
                return
    other = next((step for step in steps if view.own.skipped(step) != yard.skipped(step)), None)
    if other is not None:
        who, not_who = (view.rung.id, yard.rung.id) if view.own.skipped(other) else (yard.rung.id, view.rung.id)
        yield writer.unseen(
            f"the loss scaler skipped step {other} in {who}, not in {not_who}: nothing from there on can be compared",
            step=other,
        )
        return
    yield writer.passed(
        f"learning rates of {len(steps)} steps are those of {yard.rung.id} on every rank", observed=0, allowed=ROUNDING
    )


def _rates(step: Step) -> list[float]:
    return [float(rate) for rate in step.get("learning_rates") or ()]


def _equal(mine: list[float], wanted: list[float]) -> bool:
    if len(mine) != len(wanted):
        # Optimizers that flatten their groups report fewer: then the distinct rates are what matters.
        mine, wanted = sorted(set(mine)), sorted(set(wanted))
    return len(mine) == len(wanted) and all(
        math.isclose(a, b, rel_tol=ROUNDING) for a, b in zip(mine, wanted, strict=True)
    )


def _words(rates: list[float]) -> str:
    return ", ".join(f"{rate:.6g}" for rate in dict.fromkeys(rates)) or "none"
