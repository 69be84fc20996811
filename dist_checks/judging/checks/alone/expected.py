"""Is it as was written down before the launch?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dist_checks.judging.heard import curve
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.rung import Role

WINDOW = 10
"""Steps whose mean is taken: one batch is harder than another."""


def check(view: RungView) -> Iterator[Finding]:
    """The numbers of the matrix's ``[expect]``, from a comparable run."""
    writer = view.writer("expected")
    first, later = view.expect.get("first_loss"), view.expect.get("loss") or {}
    if view.rung.role is not Role.LEARN or (first is None and not later):
        yield writer.skipped("nothing was written down before the launch (expect)")
        return
    found, within = curve(view), float(view.expect.get("within") or 0.05)
    wanted = [(0, 1, float(first))] if first is not None else []
    wanted += [(int(step), WINDOW, float(value)) for step, value in later.items()]
    for step, window, value in sorted(wanted):
        seen = [found[at] for at in range(step - window + 1, step + 1) if at in found]
        if step not in found:
            yield writer.unseen(f"step {step} was not recorded: the rung that learns has {view.rung.steps} steps")
            return
        mean = float(np.mean(seen))
        if not abs(mean - value) <= within * abs(value):
            yield writer.failed(
                f"the loss at step {step} is {mean:.4g}, expected {value:.4g} within {within:.0%}",
                step=step,
                observed=abs(mean - value) / abs(value),
                allowed=within,
                blames=Blamed.RECIPE,
                symptom="expected_otherwise",
            )
            return
    yield writer.passed(f"{len(wanted)} losses are as expected, within {within:.0%}", allowed=within, observed=0)
