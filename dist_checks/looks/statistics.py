"""What the data are: of each sample what tells it apart, of all of them together frequencies and their entropy."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from dist_checks.looks.samples import Samples
from dist_checks.recipes.base import IGNORE, Batch, Recipe

MOST = 4096
"""Samples that are looked at, spread over all."""
CHUNK = 64
MOST_COLUMNS = 256
COMMON = 64
"""Labels whose counts are written down."""


def split(recipe: Recipe | Samples, name: str, ids: Sequence[int], chunk: int = CHUNK) -> dict[str, Any]:
    """Of the samples ``ids``: ``{split, ids, inputs, targets}`` (a hash of each), ``lengths`` (of what is no padding),
    ``counts`` (targets), ``labels`` (the most frequent), ``smallest, largest, classes_seen``, ``again`` (samples that
    are others when they are collated a second time) and entropies in nats."""
    chosen = [ids[at] for at in _spread(len(ids))]
    inputs: list[int] = []
    targets: list[int] = []
    lengths: list[int] = []
    counts: list[int] = []
    labels: Counter[int] = Counter()
    pairs: Counter[tuple[int, int]] = Counter()
    again: list[int] = []
    marks = Counter[str]()
    begins, ends = Counter[int](), Counter[int]()
    sums, leaks = _Moments(), _Leaks()
    for start in range(0, len(chosen), chunk):
        mine = chosen[start : start + chunk]
        batch, second = recipe.collate(mine), recipe.collate(mine)
        for row, id in enumerate(mine):
            x, y = batch.inputs[row], batch.targets[row]
            if not (torch.equal(x, second.inputs[row]) and torch.equal(y, second.targets[row])):
                again.append(id)
            inputs.append(_hash(_trimmed(x, recipe.pad)))
            targets.append(_hash(y))
            lengths.append(len(_trimmed(x, recipe.pad)))
            if recipe.begin is not None:
                begins[int((x == recipe.begin).sum())] += 1
            if recipe.end is not None:
                ends[int((x == recipe.end).sum())] += 1
            marks["prompt_targets"] += int((y[: recipe.prompt(id)] != IGNORE).sum()) if y.ndim else 0
        _mark(marks, batch, recipe)
        leaks.add(batch)
        counts += batch.counts.tolist()
        if batch.inputs.is_floating_point():
            sums.add(batch.inputs)
        flat = batch.targets.flatten()
        labels.update(flat[flat != IGNORE].tolist())
        pairs.update(_pairs(batch))
    unigram = entropy(labels.values())
    before = Counter[int]()
    for (token, _), count in pairs.items():
        before[token] += count
    return {
        "split": name,
        "ids": chosen,
        "inputs": inputs,
        "targets": targets,
        "lengths": lengths,
        "counts": counts,
        "labels": dict(labels.most_common(COMMON)),
        "smallest": min(labels, default=None),
        "largest": max(labels, default=None),
        "classes_seen": len(labels),
        "again": again,
        "unigram": unigram,
        "bigram": entropy(pairs.values()) - entropy(before.values()) if pairs else None,
        "sources": dict(Counter(recipe.source(id) for id in chosen)) if recipe.mixture else None,
        "features": sums.fields(),
        "pad_targets": marks["pad_targets"],
        "pad_labels": marks["pad_labels"],
        "prompt_targets": marks["prompt_targets"],
        "begins": dict(begins),
        "ends": dict(ends),
        "leaks": leaks.columns(),
    }


def _mark(marks: Counter[str], batch: Batch, recipe: Recipe | Samples) -> None:
    """Targets at inputs that are padding with nothing after them, and, where targets are tokens, those that are the id
    of padding: a tag may have the same number."""
    pad = recipe.pad
    if pad is None or batch.inputs.is_floating_point() or batch.inputs.shape != batch.targets.shape:
        return
    real = (batch.inputs != pad).flip(1).cumsum(1).flip(1) > 0
    there = batch.targets != IGNORE
    marks["pad_targets"] += int((there & ~real).sum())
    if recipe.next_token:
        marks["pad_labels"] += int((there & (batch.targets == pad)).sum())


class _Leaks:
    """Columns of the inputs that tell the label of every sample, where there is one label a sample."""

    def __init__(self) -> None:
        self.told: list[dict[float, int]] | None = None
        self.good: list[bool] = []
        self.labels: set[int] = set()
        self.samples = 0

    def add(self, batch: Batch) -> None:
        if batch.targets.ndim != 1 or batch.inputs.ndim < 2:
            return
        flat = batch.inputs.double().flatten(1)[:, :MOST_COLUMNS]
        if self.told is None:
            self.told, self.good = [{} for _ in range(flat.shape[1])], [True] * flat.shape[1]
        for row, label in zip(flat.tolist(), batch.targets.tolist(), strict=True):
            self.samples += 1
            self.labels.add(label)
            for at, value in enumerate(row):
                if self.good[at]:
                    self.good[at] = self.told[at].setdefault(value, label) == label

    def columns(self) -> list[int]:
        """With at most as many values as would be there for labels, each always with the same label."""
        few = 2 * len(self.labels)
        if self.told is None or self.samples < 4 * few or len(self.labels) < 2:
            return []
        return [at for at, good in enumerate(self.good) if good and 1 < len(self.told[at]) <= few]


def _spread(count: int) -> Iterator[int]:
    step = max(1, math.ceil(count / MOST))
    return iter(range(0, count, step))


def _trimmed(x: Tensor, pad: int | None) -> Tensor:
    """Without padding at its ends."""
    if pad is None or x.ndim != 1 or x.is_floating_point():
        return x
    real = (x != pad).nonzero()
    return x[int(real[0]) : int(real[-1]) + 1] if len(real) else x[:0]


def _hash(x: Tensor) -> int:
    return (
        zlib.crc32(x.contiguous().view(torch.uint8).numpy().tobytes())
        if x.numel() and x.ndim
        else zlib.crc32(repr(x.tolist()).encode())
    )


def _pairs(batch: Batch) -> list[tuple[int, int]]:
    """(the token, its target) where there is one target for each token."""
    if batch.inputs.is_floating_point() or batch.inputs.shape != batch.targets.shape:
        return []
    there = batch.targets != IGNORE
    return list(zip(batch.inputs[there].tolist(), batch.targets[there].tolist(), strict=True))


def entropy(counts: Any) -> float:
    """In nats, of frequencies."""
    values = list(counts)
    total = sum(values)
    return -math.fsum(value / total * math.log(value / total) for value in values) if total else 0.0


class _Moments:
    """Mean and spread of continuous inputs, over all samples."""

    def __init__(self) -> None:
        self.count, self.sum, self.squares = 0, 0.0, 0.0
        self.first: Tensor | None = None
        self.varies: Tensor | None = None

    def add(self, x: Tensor) -> None:
        flat = x.double().flatten(1)
        self.count += flat.numel()
        self.sum += float(flat.sum())
        self.squares += float(flat.square().sum())
        self.first = flat[0] if self.first is None else self.first
        varies = (flat != self.first).any(0)
        self.varies = varies if self.varies is None else self.varies | varies

    def fields(self) -> dict[str, float] | None:
        if not self.count or self.varies is None:
            return None
        mean = self.sum / self.count
        spread = math.sqrt(max(0.0, self.squares / self.count - mean * mean))
        return {"mean": mean, "std": spread, "constant": float((~self.varies).double().mean())}


def floor(batch: Batch, *, causal: bool = True, real: Tensor | None = None) -> float:
    """The loss per target, in nats, that no model can be below: where what a model sees of two samples is the same and
    the targets differ. It sees the tokens up to the target where it is ``causal``, else the whole sample; none where
    ``real`` is zero."""
    seen: dict[Hashable, Counter[int]] = {}
    if batch.targets.shape == batch.inputs.shape and not batch.inputs.is_floating_point():
        masks = torch.ones_like(batch.inputs) if real is None else real
        for tokens, targets, mask in zip(batch.inputs.tolist(), batch.targets.tolist(), masks.tolist(), strict=False):
            for at, target in enumerate(targets):
                if target != IGNORE:
                    visible = tokens[: at + 1] if causal else tokens
                    shown = tuple(token for token, there in zip(visible, mask, strict=False) if there)
                    read = shown if causal else (at, *shown)
                    seen.setdefault(read, Counter())[target] += 1
    elif batch.targets.ndim == 1:
        for row, target in zip(batch.inputs.flatten(1).tolist(), batch.targets.tolist(), strict=True):
            if target != IGNORE:
                seen.setdefault(tuple(row), Counter())[target] += 1
    total = sum(counts.total() for counts in seen.values())
    return sum(entropy(counts.values()) * counts.total() for counts in seen.values()) / total if total else 0.0
