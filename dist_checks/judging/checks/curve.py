"""Over a long run, is the loss curve that of the reference, as far as seeds differ from each other?"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dist_checks.judging.losses import losses
from dist_checks.judging.seen import Seen
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView

FEWEST = 100
"""Steps below which there is no late part of a curve: single steps are judged by other checks."""

MARGIN = 5e-3
"""Relative difference of late losses that is taken for none, where seeds do not say more. Correct layouts in bf16
measured 0.3 % over 50 steps (ISEEKYAN/Megatron-LM PR#154)."""

SEEDS = 2.0
"""Two layouts may differ as two seeds do: by so many standard deviations."""

T95 = 1.64
"""One-sided, of many."""


def check(view: RungView) -> Iterator[Finding]:
    """Two one-sided tests on the last half: equivalent, different, or too noisy to say."""
    writer = view.writer("curve")
    if view.rung.steps < FEWEST:
        yield writer.skipped(f"{view.rung.steps} steps are no curve: at least {FEWEST}")
        return
    if refused := writer.incomparable():
        yield refused
        return
    yard = view.reference or view.truth
    assert yard is not None
    mine, theirs = _late(view.own, view.rung.steps), _late(yard, view.rung.steps)
    steps = sorted(set(mine) & set(theirs))
    if len(steps) < FEWEST // 4:
        yield writer.unseen(f"only {len(steps)} late steps were recorded on both sides: {view.trace.cut}")
        return
    difference = np.array([mine[step] - theirs[step] for step in steps])
    level = float(np.mean([theirs[step] for step in steps]))
    mean = float(difference.mean())
    # Neighbouring steps are not independent: means of quarters are nearly so.
    quarters = np.array([part.mean() for part in np.array_split(difference, 4)])
    error = T95 * float(quarters.std(ddof=1)) / math.sqrt(len(quarters))
    spread = _spread(view)
    margin = max(MARGIN * abs(level), SEEDS * spread)
    observed, allowed = abs(mean) / abs(level), margin / abs(level)
    numbers = f"late losses differ by {mean:+.2e} +- {error:.1e} of {level:.4g}, {margin:.1e} allowed"
    fields = {"step": steps[0], "observed": observed, "allowed": allowed}
    if not math.isfinite(mean) or abs(mean) - error > margin:
        yield writer.failed(numbers, **fields)
    elif abs(mean) + error <= margin:
        yield writer.passed(numbers, **fields)
    else:
        yield writer.unseen(f"{numbers}: too noisy to say; more steps or more seeds would tell", **fields)


def _late(seen: Seen, steps: int) -> dict[int, float]:
    return {step: loss.mean for step, loss in losses(seen).items() if step >= steps // 2}


def _spread(view: RungView) -> float:
    """Standard deviation, over seeds, of the mean late loss of the reference; 0 for fewer than three seeds."""
    means = [
        float(np.mean(list(late.values()))) for seen in view.seeds.values() if (late := _late(seen, view.rung.steps))
    ]
    return float(np.std(means, ddof=1)) if len(means) > 2 else 0.0
