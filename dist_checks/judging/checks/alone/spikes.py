"""Does the loss or the gradient norm jump, and which samples were read then?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dist_checks.judging.losses import losses
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.rung import Role

FEWEST = 50
WINDOW = 20
LOSS, NORM = 8.0, 30.0
"""In units of how far the losses of the window are apart (half of them), and times the middle norm of the window."""
LEAST = 0.5
"""Part of the loss by which it jumps at least."""


def check(view: RungView) -> Iterator[Finding]:
    """Against the steps before: a bad sample shows there, and is named."""
    writer = view.writer("spikes")
    if view.rung.role is not Role.LEARN or view.rung.steps < FEWEST:
        yield writer.skipped("a run that learns for a while tells")
        return
    found = losses(view.own)
    steps = sorted(found)
    if len(steps) < FEWEST:
        yield writer.unseen(f"only {len(steps)} steps were recorded: {view.trace.cut}")
        return
    events = view.trace.ranks[0].steps
    values = np.array([found[step].mean for step in steps])
    norms = np.array([events[step].get("norm_used") or np.nan for step in steps], float)
    worst = 0.0
    for at in range(WINDOW, len(steps)):
        before = values[at - WINDOW : at]
        level, spread = float(np.median(before)), float(np.subtract(*np.percentile(before, [75, 25])))
        jump = float(values[at] - level)
        middle = float(np.nanmedian(norms[at - WINDOW : at])) if np.isfinite(norms[at - WINDOW : at]).any() else np.nan
        ratio = float(norms[at] / middle) if middle > 0 else 0.0
        worst = max(worst, ratio)
        if (jump > LOSS * spread and jump > LEAST * level) or ratio > NORM:
            ids = list(events[steps[at]].get("ids") or ())
            again = _common(view, steps, at, values)
            yield writer.failed(
                f"at step {steps[at]} the loss is {values[at]:.4g} after {level:.4g}, the gradient norm "
                f"{norms[at]:.3g} after {middle:.3g}; samples {', '.join(map(str, ids[:40]))}{again}",
                step=steps[at],
                observed=float(values[at]),
                allowed=level + max(LOSS * spread, LEAST * level),
                blames=Blamed.RECIPE,
                symptom="spike",
            )
            return
    yield writer.passed(
        f"no step jumps; the largest gradient norm is {worst:.3g} times those before it", observed=worst
    )


def _common(view: RungView, steps: list[int], at: int, values: np.ndarray) -> str:
    """Samples that all steps which jump have in common, where there are several."""
    events = view.trace.ranks[0].steps
    level = float(np.median(values))
    high = [
        set(events[s].get("ids") or ()) for s, v in zip(steps, values, strict=True) if s >= WINDOW and v > 1.5 * level
    ]
    shared = set.intersection(*high) if len(high) > 1 else set()
    if not shared or len(shared) > 8:
        return ""
    return f"; in all {len(high)} steps that jump: sample {', '.join(map(str, sorted(shared)))}"
