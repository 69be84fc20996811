"""Is every loss and every gradient a number?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.trace import Kind


def check(view: RungView) -> Iterator[Finding]:
    """The first step in which one is not, and the samples that were read then; what a loss scaler skips is no fault."""
    writer = view.writer("non_finite")
    if not view.trace.ranks or not view.trace.steps:
        yield writer.unseen(f"no step was recorded: {view.trace.cut}")
        return
    saved = {int(each["of"]): str(each["path"]) for each in view.observed("bundle")}
    for step, event in sorted(view.trace.ranks[0].steps.items()):
        loss, norm = event.get("loss_sum"), None if event.get("skipped") else event.get("norm_used")
        if all(value is None or math.isfinite(value) for value in (loss, norm)):
            continue
        what = "the loss" if loss is not None and not math.isfinite(loss) else "the gradient"
        ids = list(event.get("ids") or ())
        bundle = f"; dist-checks replay {saved[step]} says where it begins" if step in saved else ""
        yield writer.failed(
            f"{what} of step {step} is not finite; samples {', '.join(map(str, ids[:40]))}{bundle}",
            step=step,
            tensor=_tensor(view, step),
            observed=math.nan,
            blames=Blamed.RECIPE if view.rung.truth is None else None,
            symptom="not_finite",
            suspects=("overflow",) if view.rung.precision.startswith("fp16") else ("zero", "sample"),
        )
        return
    yield writer.passed(f"losses and gradients of {len(view.trace.steps)} steps are finite", observed=0, allowed=0)


def _tensor(view: RungView, step: int) -> str | None:
    """The only gradient that is not finite, where there is one alone."""
    gradients = view.own.full(Kind.GRADIENT)
    bad = [gradients.names[gradients.tensor[row]] for row in gradients.at(step) if gradients.nonfinite[row]]
    return bad[0] if len(bad) == 1 else None
