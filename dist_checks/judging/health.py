"""Numbers for the pictures of rung zero: curves with what is to be expected of them, a heat map, the batch as text."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dist_checks.judging.heard import classes as classes_of
from dist_checks.judging.logical import Full, Key
from dist_checks.judging.moves import moves
from dist_checks.judging.settings_seen import first_batch
from dist_checks.judging.view import RungView
from dist_checks.rung import Role
from dist_checks.trace import NO_ITEM, Kind

MOST_TENSORS = 80
LABELS = 8
CLASSES = ("names", "counts", "right", "losses", "confusion", "matrix", "worst")


def health(view: RungView) -> dict[str, Any] | None:
    """Of the rung that learns; None of others. ``lines`` are losses to expect, by name; ``heat`` has a row for each
    parameter: log10 of gradient over weight and of update over weight, at the recorded steps."""
    if view.rung.role is not Role.LEARN or not view.trace.ranks:
        return None
    events = view.trace.ranks[0].steps
    steps = sorted(events)
    train = next((each for each in view.observed("split") if each["split"] == "train"), {})
    shown, told = next(iter(view.observed("shown")), {}), next(iter(view.observed("classes")), {})
    return {
        "steps": steps,
        "norm": [events[step].get("norm_used") for step in steps],
        "clip": next((e["clip"] for e in events.values() if e.get("clip") is not None), None),
        "lines": _lines(view, train),
        "validation": [
            [each["step"], each["loss_sum"] / each["targets"]]
            for each in view.observed("validation")
            if each["targets"]
        ],
        "heat": _heat(view),
        "activations": [dict(row) for each in view.observed("activations")[:1] for row in each.get("functions") or ()],
        "classes": {key: value for key, value in told.items() if key in CLASSES},
        "metrics": [[each["step"], dict(each["values"])] for each in view.observed("metrics") if each["values"]],
        "shown": {key: shown[key] for key in ("rows", "shape") if key in shown},
        "data": {
            "first_batch": first_batch(view.trace),
            "samples": len(train.get("ids") or ()),
            "fingerprint": zlib.crc32(repr([train.get("inputs"), train.get("targets")]).encode()),
            "lengths": _quartiles(train.get("lengths") or ()),
            "targets": _quartiles(train.get("counts") or ()),
            "labels": _shares(train),
        },
    }


def _quartiles(values: Sequence[int]) -> list[int]:
    """Smallest, quarter, middle, three quarters, largest."""
    ordered = sorted(values)
    return [ordered[round(at * (len(ordered) - 1) / 4)] for at in range(5)] if ordered else []


def _shares(train: Mapping[str, Any]) -> list[list[Any]]:
    """The most frequent labels, each with its share of all."""
    total = sum(train.get("counts") or ())
    counts = sorted((train.get("labels") or {}).items(), key=lambda each: -each[1])
    return [[label, count / total] for label, count in counts[:LABELS]] if total else []


def _lines(view: RungView, train: Any) -> dict[str, float]:
    classes = classes_of(view) or 0
    named = {
        f"ln({classes})": math.log(classes) if classes > 1 else None,
        "entropy of labels": train.get("unigram"),
        "of labels given the token before": train.get("bigram"),
    }
    return {name: float(value) for name, value in named.items() if value is not None}


def _heat(view: RungView) -> dict[str, Any] | None:
    weights, gradients = view.own.full(Kind.WEIGHT), view.own.full(Kind.GRADIENT)
    if not len(weights) or not len(gradients):
        return None
    steps = [step for step in gradients.steps if step >= 0 and len(weights.at(step))]
    names = list(gradients.names)[:MOST_TENSORS]
    return {
        "names": names,
        "steps": steps,
        "gradient": _rows(names, steps, gradients, weights),
        "update": _rows(names, steps, moves(view.own), weights),
    }


def _rows(names: list[str], steps: list[int], of: Full, weights: Full) -> list[list[float | None]]:
    out = []
    for name in names:
        row: list[float | None] = []
        for step in steps:
            here, there = of.rows.get(Key(name, step, NO_ITEM)), weights.rows.get(Key(name, step, NO_ITEM))
            size = 0.0 if there is None else float(weights.norm[there])
            value = None if here is None or not size else float(np.sqrt(of.sum_squares[here])) / size
            row.append(math.log10(value) if value and math.isfinite(value) else None)
        out.append(row)
    return out
