"""Can one small batch be memorised?"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dist_checks.judging.losses import losses
from dist_checks.judging.reach import moved, reached
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.rung import Role

FALLING = 0.95
"""Where the last quarter of the steps is this much below the one before it, more steps would tell."""


def check(view: RungView) -> Iterator[Finding]:
    """What cannot be memorised is wrong in data, loss, optimizer or gradient flow: what is ruled out is said."""
    writer = view.writer("overfit")
    if view.rung.role is not Role.OVERFIT:
        yield writer.skipped("the rung that memorises one batch tells")
        return
    found = losses(view.own)
    steps = sorted(found)
    if len(steps) < 4:
        yield writer.unseen(f"only {len(steps)} steps were recorded: {view.trace.cut}")
        return
    values = np.array([found[step].mean for step in steps])
    batch = next(iter(view.observed("batch")), {})
    floor = float(batch.get("floor", 0.0))
    bound = floor + float(view.single.get("overfit_bound", 0.1))
    parts = np.array_split(values, 4)
    # One step may jump when all is well: the middle of the last few counts.
    last, before = float(np.median(values[-max(3, len(values) // 20) :])), float(np.median(parts[2]))
    numbers = (
        f"{len(batch.get('ids', ()))} samples: the loss went from {values[0]:.4g} to {last:.4g} in {len(steps)} steps"
    )
    fields = {"step": steps[-1], "observed": last, "allowed": bound}
    if last <= bound:
        yield writer.passed(f"{numbers}; no model could be below {floor:.2g}", **fields)
        return
    if math.isfinite(last) and float(np.median(parts[3])) < FALLING * before and last < 0.5 * values[0]:
        yield writer.unseen(
            f"{numbers}, above {bound:.2g}, and it still falls: single.overfit_steps would tell", **fields
        )
        return
    out, suspects = _ruled_out(view, values, floor)
    yield writer.failed(
        f"{numbers}, above {bound:.2g}. {out}",
        **fields,
        blames=Blamed.RECIPE,
        symptom="not_memorised",
        suspects=suspects,
    )


def _ruled_out(view: RungView, values: np.ndarray, floor: float) -> tuple[str, list[str]]:
    """(which suspects the trace clears, those that are left)."""
    cleared: list[str] = []
    left: list[str] = []
    flows, moves = reached(view.own), moved(view.own)
    if flows is not None:
        (cleared if flows > 0.9 else left).append(f"gradient flow ({flows:.0%} of the parameters have a gradient)")
    if moves is not None:
        (cleared if moves > 0.9 else left).append(f"the optimizer ({moves:.0%} of them move)")
    held = {name for group in view.trace.header.get("optimizer") or () for name in group.get("parameters") or ()}
    suspects = (
        (["optimizer"] if None in held else [])
        + (["flow"] if flows is not None and flows <= 0.9 else [])
        + (["rate", "optimizer"] if moves is not None and moves <= 0.9 else [])
    )
    if not np.isfinite(values).all() or values[-1] > values[0]:
        suspects += ["rate"]
    elif values[-1] < 0.9 * values[0]:
        cleared.append("a graph that is cut")
        suspects += ["rate", "data", "capacity"]
    else:
        suspects += ["loss", "data"]
    said = f"Ruled out: {', '.join(cleared)}" if cleared else "Nothing is ruled out"
    return said + (f"; not ruled out: {', '.join(left)}" if left else ""), suspects
