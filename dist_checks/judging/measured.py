"""Numbers for the report: how large an error would have been seen, and how rung and reference run side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dist_checks.judging.contributions import NotSeen, weigh
from dist_checks.judging.losses import losses
from dist_checks.judging.view import RungView
from dist_checks.trace import Kind


def comparable(view: RungView) -> bool:
    return not view.no_yard and not view.not_comparable and bool(len(view.own.full(Kind.GRADIENT)))


def sensitivity(view: RungView) -> dict[str, Any] | None:
    """The smallest scale error of a first gradient that would have failed: of the tensor where the least is seen, of
    the one in the middle, of the one where the most is needed. A PASS means that much and no more. None where nothing
    was compared."""
    if not comparable(view) or not len(view.gradients):
        return None
    found = view.gradients
    first = found.step == found.step.min()
    # A tensor of rounding noise has no scale that could be wrong.
    clear = first & np.isfinite(found.distance) & (found.norm > view.tolerance.share(found.step) * found.total)
    rows = np.flatnonzero(clear & np.isfinite(found.allowed))
    if not rows.size:
        return None
    # What is there already may point the same way or the other way.
    scale = (found.allowed[rows] + found.distance[rows]) / found.norm[rows]
    passes = np.maximum(found.allowed[rows] - found.distance[rows], 0.0) / found.norm[rows]
    order = np.argsort(scale, kind="stable")
    at = {"finest": order[0], "median": order[len(order) // 2], "coarsest": order[-1]}
    fine, half, coarse = (_share(float(scale[row])) for row in at.values())
    names = {name: found.keys[int(rows[row])].name for name, row in at.items()}
    step = int(found.step[rows[0]])
    sentence = (
        f"any scale error above {fine} of {names['finest']} at step {step}, above {half} of half of the gradients, "
        f"above {coarse} of any"
    )
    out = {
        name: {"tensor": names[name], "scale": float(scale[row]), "passes": float(passes[row])}
        for name, row in at.items()
    }
    return {"check": "gradients", "sentence": sentence, "tensors": len(rows), **out}


def _share(value: float) -> str:
    """``0.4 %``, ``5e-08``."""
    return f"{100 * value:.2g} %" if value >= 1e-4 else f"{value:.0e}"


def series(views: Sequence[RungView]) -> dict[str, Any]:
    """Step by step, over the phases of a rung: losses, and the gradient that is nearest to failing, or furthest
    beyond."""
    mine = {step: loss for view in views for step, loss in losses(view.own).items()}
    other = views[0].reference or views[0].truth
    yard = losses(other) if other is not None else {}
    steps = sorted(set(mine) | set(yard))
    out: dict[str, Any] = {
        "steps": steps,
        "loss": [mine[step].mean if step in mine else None for step in steps],
        "reference_loss": [yard[step].mean if step in yard else None for step in steps],
    }
    distance: dict[int, tuple[float, float, str]] = {}
    for view in filter(comparable, views):
        found = view.gradients
        for step in steps:
            rows = np.flatnonzero(found.step == step)
            if rows.size:
                at = int(rows[np.argmax(found.strain[rows])])
                distance[step] = float(found.observed[at]), float(found.allowed_relative[at]), found.keys[at].name
    for index, name in enumerate(("gradient_distance", "gradient_allowed", "gradient_tensor")):
        out[name] = [distance[step][index] if step in distance else None for step in steps]
    return out


def contributions(view: RungView) -> dict[str, Any] | None:
    """The weight of each sample in the first gradient; None where it could not be told."""
    if not comparable(view):
        return None
    try:
        found = weigh(view)
    except NotSeen:
        return None
    return {
        "step": found.step,
        "ids": list(found.ids),
        "weights": [float(weight) for weight in found.weights],
        "allowed": found.allowed,
        "residual": found.residual,
        "floor": found.floor,
    }
