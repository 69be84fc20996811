"""Does the loss or the gradient norm jump, and which samples were read then?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dist_checks.judging.heard import curve
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.jumps import WINDOW, Usual
from dist_checks.rung import Role

FEWEST = 50
AGAIN = 0.5
"""Of a jump, and of the way from the first loss."""


def check(view: RungView) -> Iterator[Finding]:
    """Against the steps before: a bad sample shows there, and is named."""
    writer = view.writer("spikes")
    if view.rung.role is not Role.LEARN or view.rung.steps < FEWEST:
        yield writer.skipped("a run that learns for a while tells")
        return
    found = curve(view)
    steps = sorted(found)
    if len(steps) < FEWEST:
        said = f"only {len(steps)} steps were recorded"
        yield writer.unseen(f"{said}: {view.trace.cut}") if view.trace.cut else writer.skipped(f"{said}: no curve")
        return
    events = view.trace.ranks[0].steps
    values = [found[step] for step in steps]
    norms = [events[step].get("norm_used") for step in steps]
    worst = 0.0
    for at in range(WINDOW, len(steps)):
        usual = Usual.of(values[:at], norms[:at], (values[0], norms[0]))
        worst = max(worst, usual.times(norms[at]))
        if usual.jumps(values[at], norms[at]) and not (view.own_loop and _restless(values[:at], values[at], usual)):
            ids = list(events[steps[at]].get("ids") or ())
            again = _common(view, steps, at, np.array(values))
            norm = "unknown" if norms[at] is None else f"{norms[at]:.3g}"
            yield writer.failed(
                f"at step {steps[at]} the loss is {values[at]:.4g} after {usual.level:.4g}, the gradient norm "
                f"{norm} after {usual.norm:.3g}; samples {', '.join(map(str, ids[:40]))}{again}"
                f"{_saved(view, steps[at])}",
                step=steps[at],
                observed=float(values[at]),
                allowed=usual.highest,
                blames=Blamed.RECIPE,
                symptom="spike",
            )
            return
    yield writer.passed(
        f"no step jumps; the largest gradient norm is {worst:.3g} times those before it", observed=worst
    )


def _restless(before: list[float], now: float, usual: Usual) -> bool:
    """A script's batches may be small, and of many kinds: it has jumped half as far before, or is not halfway back to
    where it came from."""
    highest = max(before[WINDOW // 2 :])
    level, first = usual.level, before[0]
    halfway = level + AGAIN * max(0.0, first - level)
    return usual.highest < now and (highest - level >= AGAIN * (now - level) or now < halfway)


def _saved(view: RungView, step: int) -> str:
    """The last bundle counts: a step that is not finite takes the place of one that jumps."""
    for each in view.observed("bundle")[-1:]:
        if each["of"] == step:
            return f"; dist-checks replay {each['path']} says which sample, with --without-sample whether it goes away"
    return ""


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
