"""With which weight did each sample enter the gradient? Sketches are linear, so least squares tells."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dist_checks import pipeline
from dist_checks.axes import Axis
from dist_checks.judging.factors import in_numbers
from dist_checks.judging.logical import Key
from dist_checks.judging.seen import Seen
from dist_checks.judging.view import RungView
from dist_checks.trace import BUCKETS, NO_ITEM, Kind

Floats = NDArray[np.float64]

WORST_CONDITION = 1e5
"""Above it the samples' gradients are too much alike to be told apart (a tiny GPT measured 8)."""

DEVIATIONS = 6
"""Standard deviations of a weight that are still allowed."""


class NotSeen(Exception):
    """The weights cannot be told; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """gradient = sum over samples of weight x the sample's own share; 1 for each sample when all is right."""

    step: int
    ids: tuple[int, ...]
    weights: Floats
    allowed: float
    """How far a weight may be from 1."""
    residual: float
    """What no weights explain, relative to the gradient."""
    floor: float
    """A residual that rounding explains."""
    distance: float
    """Of the gradient from the sum of all samples, relative to that: what is left with all weights 1."""

    @property
    def explained(self) -> bool:
        """The gradient is a combination of the samples' gradients: data or normalisation, not mathematics."""
        return self.residual <= self.floor

    @property
    def wrong(self) -> NDArray[np.bool_]:
        return ~(np.abs(self.weights - 1) <= self.allowed)


def weigh(view: RungView) -> Weights:
    """Least squares of the rung's gradient on the gradients of single samples. Raises NotSeen."""
    source = _source(view)
    shares = source.full(Kind.SAMPLE_GRADIENT)
    step = int(shares.step[0])
    if step not in view.comparable_steps or view.own.skipped(step):
        raise NotSeen(f"step {step} was skipped by the loss scaler")
    found = view.gradients
    at_step = np.flatnonzero(found.step == step)
    rows = {found.keys[at].name: at for at in at_step.tolist()}
    if not rows:
        raise NotSeen(f"no gradient of step {step} was recorded on both sides")
    ids = tuple(sorted({int(item) for item in np.unique(shares.item) if item != NO_ITEM}))
    columns, target, allowed = [], [], []
    mine = view.own.full(Kind.GRADIENT)
    limits = found.allowed + found.excuse
    for name, at in rows.items():
        column = [shares.rows.get(Key(name, step, item), -1) for item in ids]
        if min(column) < 0:
            continue
        columns.append(shares.sketch[column].T)
        target.append(mine.sketch[found.rows[at]])
        allowed.append(float(limits[at]))
    if not columns:
        raise NotSeen("no tensor has both a gradient and the gradients of its samples")
    return _fit(step, ids, np.concatenate(columns), np.concatenate(target), np.array(allowed))


def _source(view: RungView) -> Seen:
    """Where the samples' own gradients are from: in float64 where that was recorded."""
    for seen in (view.truth, view.reference):
        if seen is not None and len(seen.full(Kind.SAMPLE_GRADIENT)):
            return seen
    raise NotSeen("no single has recorded the gradients of its samples")


def _fit(step: int, ids: tuple[int, ...], matrix: Floats, target: Floats, allowed: Floats) -> Weights:
    """``matrix`` has BUCKETS rows for each tensor and a column for each sample; ``allowed`` is the norm of the error
    that each tensor of ``target`` may have."""
    norm = float(np.linalg.norm(target))
    if not (np.isfinite(matrix).all() and np.isfinite(norm) and norm > 0):
        raise NotSeen(f"the gradient of step {step} is zero or not finite")
    count = len(ids)
    # Normal equations, refined once: exact enough for these condition numbers, and much faster than a decomposition of
    # the tall matrix, which keeps all cores busy with waiting for each other.
    spectrum, vectors = np.linalg.eigh(matrix.T @ matrix)
    if len(matrix) <= count or not spectrum[0] * WORST_CONDITION**2 > spectrum[-1]:
        raise NotSeen(f"the gradients of the {count} samples are too much alike to be told apart")
    inverse = (vectors / spectrum) @ vectors.T
    weights = inverse @ (matrix.T @ target)
    weights += inverse @ (matrix.T @ (target - matrix @ weights))
    largest = max(1.0, float(np.abs(weights).max()))
    # How far such errors carry the weights: the usual covariance of least squares, with errors spread over buckets.
    projected = matrix @ inverse
    deviation = np.sqrt(np.square(projected * np.repeat(allowed / BUCKETS**0.5, BUCKETS)[:, None]).sum(0))
    return Weights(
        step=step,
        ids=ids,
        weights=weights,
        allowed=largest * DEVIATIONS * float(deviation.max()),
        residual=float(np.linalg.norm(matrix @ weights - target)) / norm,
        floor=largest * float(np.linalg.norm(allowed)) / norm,
        distance=float(np.linalg.norm(matrix.sum(1) - target) / (np.linalg.norm(matrix.sum(1)) or 1.0)),
    )


def in_words(view: RungView, found: Weights) -> str:
    """Which samples have a wrong weight, by what they have in common: the data rank, the micro-batch, or nothing."""
    weight = dict(zip(found.ids, found.weights.tolist(), strict=True))
    wrong = {id for id, bad in zip(found.ids, found.wrong.tolist(), strict=True) if bad}
    if len(wrong) == len(found.ids) and _one(weight.values(), found):
        mean = float(found.weights.mean())
        words = in_numbers(view, found.step, mean, found.allowed)
        return f"every sample entered with weight {_number(mean)}" + (f": {words}" if words else "")
    by_rank, by_micro, readers = _readers(view, found.step)
    for groups, name in ((by_rank, "the samples of data rank {0}"), (by_micro, "micro-batch {1} of data rank {0}")):
        sentences, told = [], set()
        for key, ids in groups.items():
            known = [id for id in ids if id in weight]
            if wrong.intersection(known) and _one((weight[id] for id in known), found):
                sentences.append(f"{name.format(*key)} entered with weight {_number(weight[known[0]])}")
                told.update(known)
        if sentences and wrong <= told:
            return _some(sentences)
    sentences = []
    for id in sorted(wrong, key=lambda id: -abs(weight[id] - 1)):
        lost = "" if id in readers else " (no rank read it)"
        sentences.append(f"sample {id} entered with weight {_number(weight[id])}{lost}")
    return _some(sentences)


def diagnosis(view: RungView, found: Weights) -> str:
    """Where the weights are those of a decaying sum, or of a mean of means, that; else an empty string.

    n groups, each divided by its own number of targets c instead of the total T, have weights T / (n c): so T / (n w)
    must be whole numbers that add up to T. (huggingface/transformers#34242)
    """
    if decaying := _decaying(view, found):
        return decaying
    weight = dict(zip(found.ids, found.weights.tolist(), strict=True))
    by_rank, by_micro, _ = _readers(view, found.step)
    total = _targets(view, found.step)
    for groups, name in ((by_rank, "data rank"), (by_micro, "micro-batch")):
        means = [[weight[id] for id in ids if id in weight] for ids in groups.values()]
        if len(means) < 2 or not all(each and min(each) > 0 and _one(each, found) for each in means):
            continue
        counts = [total / (len(means) * each[0]) for each in means]
        whole = [round(count) for count in counts]
        near = all(
            abs(count - n) <= min(0.1, 2 * found.allowed * count + 1e-6) for count, n in zip(counts, whole, strict=True)
        )
        if near and sum(whole) == total:
            listed = ", ".join(map(str, whole[:8])) + (", ..." if len(whole) > 8 else "")
            return f"a mean of means: each {name} was divided by its own targets ({listed}), not by the {total} of all"
    return ""


def _targets(view: RungView, step: int) -> int:
    """Of the whole batch: those of each data rank, which under cp its ranks have among them."""
    parts = {view.layout.loss_part(rank): rank for ranks in view.data_ranks().values() for rank in reversed(ranks)}
    return sum(int(view.trace.by_rank[rank].steps.get(step, {}).get("targets", 0)) for rank in parts.values())


def _decaying(view: RungView, found: Weights) -> str:
    """Gradients of earlier passes through a pipeline's schedule were divided again by each later pass, which is meant
    for its own: with m micro-batches, pass i of g has weight m^-(g-i), a division that all have in common left out.
    (pytorch/torchtitan#1733)
    """
    passes, each = view.rung.setting.degree(Axis.ACCUM), pipeline.micro_batches(view.rung.setting)
    weight = dict(zip(found.ids, found.weights.tolist(), strict=True))
    _, by_micro, _ = _readers(view, found.step)
    if passes == 1 or each == 1 or not by_micro:
        return ""
    for (_, index), ids in by_micro.items():
        wanted = float(each) ** (index // each - (passes - 1))
        if any(not abs(weight.get(id, wanted) - wanted) <= found.allowed for id in ids):
            return ""
    return (
        f"each pass through the schedule divided what the passes before it had left by its micro-batches ({each}): of "
        f"{passes} passes the first has weight {float(each) ** (1 - passes):.3g}, the last 1"
    )


def _readers(
    view: RungView, step: int
) -> tuple[dict[tuple[int, ...], list[int]], dict[tuple[int, ...], list[int]], set[int]]:
    by_rank: dict[tuple[int, ...], list[int]] = {}
    by_micro: dict[tuple[int, ...], list[int]] = {}
    for part, ranks in view.data_ranks().items():
        event = view.trace.by_rank[ranks[0]].steps.get(step, {})
        by_rank[part,] = list(event.get("ids", ()))
        for index, ids in enumerate(event.get("micro_batches", ())):
            by_micro[part, index] = list(ids)
    return by_rank, by_micro, {id for ids in by_rank.values() for id in ids}


def _one(weights: Iterable[float], found: Weights) -> bool:
    """All of them are the same number."""
    values = list(weights)
    return max(values) - min(values) <= 2 * found.allowed


def _number(weight: float) -> str:
    """``0.000``, never ``-0.000``."""
    return f"{weight + 0.0:.3f}".replace("-0.000", "0.000")


def _some(sentences: list[str], most: int = 6) -> str:
    more = f" and {len(sentences) - most} more" if len(sentences) > most else ""
    return ", ".join(sentences[:most]) + more
