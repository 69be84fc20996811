"""Can one small batch be memorised?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dist_checks.judging.heard import curve, heard
from dist_checks.judging.reach import moved, reached
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView, Writer
from dist_checks.rung import Role

PART = 0.1
"""Of the first loss, where it is no cross-entropy."""
WILD = 1.5
"""Times the first loss: only steps that are far too long throw it there."""

FLOWS = 0.9
"""Share of the parameters that get a gradient, and that move, for either to be ruled out."""
FELL = 0.9
"""Of the first loss, for that of a script to have fallen at all."""
FALLING = 0.95
"""Where the last quarter of the steps is this much below the one before it, more steps would tell."""


def check(view: RungView) -> Iterator[Finding]:
    """What cannot be memorised is wrong in data, loss, optimizer or gradient flow: what is ruled out is said."""
    writer = view.writer("overfit")
    if view.rung.role is not Role.OVERFIT:
        yield writer.skipped("the rung that memorises one batch tells")
        return
    found = curve(view)
    steps = sorted(found)
    if len(steps) < 4:
        yield writer.unseen(f"only {len(steps)} steps were recorded: {view.trace.cut}")
        return
    early = len(steps) < view.rung.steps and not view.trace.cut
    values = np.array([found[step] for step in steps])
    if said := _other_batches(view):
        yield writer.unseen(said)
        return
    if view.own_loop and not heard(view):
        yield from _of_another_loss(view, writer, values)
        return
    batch = next(iter(view.observed("batch")), {})
    floor = float(batch.get("floor", 0.0))
    bound = floor + float(view.single.get("overfit_bound", 0.1))
    parts = np.array_split(values, 4)
    # One step may jump when all is well: the middle of the last few counts.
    last, before = float(np.median(values[-max(3, len(values) // 20) :])), float(np.median(parts[2]))
    numbers = f"{_samples(view, batch)} samples: the loss went from {values[0]:.4g} to {last:.4g} in {len(steps)} steps"
    fields = {"step": steps[-1], "observed": last, "allowed": bound}
    if last <= bound:
        yield writer.passed(f"{numbers}; no model could be below {floor:.2g}", **fields)
        return
    if early:
        yield writer.unseen(f"{numbers}, of {view.rung.steps} that it was asked for: it reads no more epochs", **fields)
        return
    falls = float(np.median(parts[3])) < FALLING * before and last < 0.5 * values[0]
    # A script may step by rates that are small, or come to their end.
    falls = falls or (view.own_loop and last < FELL * values[0] and _flows(view))
    if math.isfinite(last) and falls:
        yield writer.unseen(f"{numbers}, above {bound:.2g}: more steps (single.overfit_steps) would tell", **fields)
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
        (cleared if flows > FLOWS else left).append(f"gradient flow ({flows:.0%} of the parameters have a gradient)")
    if moves is not None:
        (cleared if moves > FLOWS else left).append(f"the optimizer ({moves:.0%} of them move)")
    held = {name for group in view.trace.header.get("optimizer") or () for name in group.get("parameters") or ()}
    suspects = (
        (["optimizer"] if None in held else [])
        + (["flow"] if flows is not None and flows <= FLOWS else [])
        + (["rate", "optimizer"] if moves is not None and moves <= FLOWS else [])
    )
    if not np.isfinite(values).all() or values[-1] > values[0] or values.max() > WILD * abs(values[0]):
        suspects += ["rate"]
    elif values[-1] < 0.9 * values[0]:
        cleared.append("a graph that is cut")
        suspects += ["rate", "data", "capacity"]
    else:
        suspects += ["loss", "data"]
    said = f"Ruled out: {', '.join(cleared)}" if cleared else "Nothing is ruled out"
    return said + (f"; not ruled out: {', '.join(left)}" if left else ""), suspects


def _flows(view: RungView) -> bool:
    """Gradients reach the parameters, and these move, as far as was seen."""
    return all(share is None or share > FLOWS for share in (reached(view.own), moved(view.own)))


def _samples(view: RungView, batch: Mapping[str, Any]) -> int:
    return len(batch.get("ids") or view.trace.ranks[0].steps[0].get("ids") or ())


def _other_batches(view: RungView) -> str:
    """Why it was not one batch that a script has read; empty where it was."""
    if not view.own_loop:
        return ""
    steps = view.trace.ranks[0].steps
    read = {tuple(event["ids"]) for event in steps.values()}
    others = sum(int(each["others"]) for each in view.observed("held"))
    advice = (
        "batches of a DataLoader and of probe.watch are held, and what a model is called with where its loss is "
        "computed inside or is a cross-entropy"
    )
    if len(read) > 1:
        return f"the script read {len(read)} different batches in {len(steps)} steps: {advice}"
    if others:
        return f"the targets were others than at first in {others} calls of the loss: {advice}"
    if () in read:
        return f"what the script read was not seen, so it may be another batch in every step: {advice}"
    return ""


def _of_another_loss(view: RungView, writer: Writer, values: np.ndarray) -> Iterator[Finding]:
    """Of which nobody knows how low it may get: it has to fall to a small part of what it was."""
    last = float(np.median(values[-max(3, len(values) // 20) :]))
    bound = PART * abs(float(values[0]))
    said = f"the loss, which is no cross-entropy, went from {values[0]:.4g} to {last:.4g} in {len(values)} steps"
    fields = {"observed": last, "allowed": bound}
    if last <= bound:
        yield writer.passed(said, **fields)
    elif len(values) < view.rung.steps and not view.trace.cut:
        yield writer.unseen(f"{said}, of {view.rung.steps} that it was asked for: it reads no more epochs", **fields)
    elif math.isfinite(last) and last < values[0] and float(np.median(np.array_split(values, 4)[2])) > last / FALLING:
        yield writer.unseen(f"{said}, and it still falls: single.overfit_steps would tell", **fields)
    elif _flows(view):
        yield writer.unseen(f"{said}. Gradients flow and weights move, and how low it may get is not known", **fields)
    else:
        out, suspects = _ruled_out(view, values, 0.0)
        yield writer.failed(
            f"{said}. {out}", **fields, blames=Blamed.RECIPE, symptom="not_memorised", suspects=suspects
        )
