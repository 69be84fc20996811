"""Are units dead, or activations at the end of their range?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.rung import Role

DEAD, SATURATED = 0.5, 0.9
"""Shares, of units and of elements. A healthy ReLU is zero for half of its inputs, but not for the same unit always."""


def check(view: RungView) -> Iterator[Finding]:
    """Of the outputs of activation functions on a few samples, before training and after it."""
    writer = view.writer("activations")
    if view.rung.role is not Role.LEARN:
        yield writer.skipped("the rung that learns looks at it")
        return
    seen = [(each["step"], row) for each in view.observed("activations") for row in each.get("functions") or ()]
    if not seen:
        yield writer.skipped("no activation function was met")
        return
    step, worst = max(seen, key=lambda each: each[1]["dead"])
    at, full = max(seen, key=lambda each: each[1]["saturated"])
    if worst["dead"] > DEAD:
        where = f"{worst['function']} in {worst['module'] or 'the model'}"
        yield writer.failed(
            f"{worst['dead']:.0%} of the units of {where} are zero for every token ({worst['zeros']:.0%} of all "
            "elements)",
            step=step,
            tensor=worst["module"] or None,
            observed=worst["dead"],
            allowed=DEAD,
            blames=Blamed.RECIPE,
            symptom="dead",
            suspects=("bias",) if step <= 1 else ("rate", "bias"),  # a script is asked after one step,
        )
    elif full["saturated"] > SATURATED:
        yield writer.failed(
            f"{full['saturated']:.0%} of {full['function']} in {full['module'] or 'the model'} is at its end",
            step=at,
            tensor=full["module"] or None,
            observed=full["saturated"],
            allowed=SATURATED,
            blames=Blamed.RECIPE,
            symptom="saturated",
        )
    else:
        yield writer.passed(
            f"of {len(seen)} activation functions none has more than {worst['dead']:.0%} dead units",
            observed=worst["dead"],
            allowed=DEAD,
        )
