"""After learning: which classes are told apart, which are taken for each other, and which samples are furthest off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from dist_checks.recipes.base import IGNORE, Batch, Recipe
from dist_checks.worker.alone.outputs import quietly

MOST_CLASSES = 64
MOST = 2048
"""Samples."""
CHUNK = 64
WORST = 8
"""Samples that are shown."""


def classes(
    model: nn.Module, recipe: Recipe, ids: Sequence[int], collate: Callable[[Sequence[int]], Batch]
) -> dict[str, Any] | None:
    """``{names, counts, right, losses}`` by class (losses are sums), ``confusion [[label, said, count]]`` of what is
    taken for something else, the most frequent first, and ``worst [{id, label, said, loss, text}]``. None where the
    recipe foretells tokens, or outputs are not one row of logits for each target."""
    if recipe.next_token or not 1 < recipe.classes <= MOST_CLASSES:
        return None
    total = recipe.classes
    counts, right, losses = [0] * total, [0] * total, [0.0] * total
    confusion: Counter[tuple[int, int]] = Counter()
    worst: list[dict[str, Any]] = []
    with quietly(model):
        for start in range(0, min(len(ids), MOST), CHUNK):
            mine = ids[start : start + CHUNK]
            batch = collate(mine)
            logits = _logits(model(batch.inputs), batch)
            if logits is None:
                return None
            rows = torch.arange(len(mine)).view(-1, *[1] * (batch.targets.ndim - 1)).expand_as(batch.targets)
            there = (batch.targets != IGNORE) & (batch.targets >= 0) & (batch.targets < logits.shape[-1])
            targets, chosen = batch.targets[there].cpu(), logits[there].double().cpu()
            loss = nn.functional.cross_entropy(chosen, targets, reduction="none").tolist()
            said = chosen[:, :total].argmax(-1).tolist()
            for row, label, guess, each in zip(rows[there.cpu()].tolist(), targets.tolist(), said, loss, strict=True):
                if label >= total:
                    continue
                counts[label] += 1
                right[label] += label == guess
                losses[label] += each
                if label != guess:
                    confusion[label, guess] += 1
                    worst.append({"id": mine[row], "label": label, "said": guess, "loss": each})
    worst = sorted(worst, key=lambda each: -each["loss"])[:WORST]
    for each in worst:
        each["text"] = _text(recipe, recipe.collate([each["id"]]).inputs[0])
    return {
        "names": [recipe.decode([label]) for label in range(total)],
        "counts": counts,
        "right": right,
        "losses": losses,
        "confusion": [[label, guess, count] for (label, guess), count in confusion.most_common(WORST)],
        "worst": worst,
    }


def _logits(output: Any, batch: Batch) -> Tensor | None:
    """The first floating tensor that has a row for each target."""
    for leaf in tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.shape[:-1] == batch.targets.shape:
            return leaf
    return None


def _text(recipe: Recipe, x: Tensor) -> str:
    if not x.is_floating_point():
        return recipe.decode(x.flatten().tolist())[:200]
    few = ", ".join(f"{value:.3g}" for value in x.flatten()[:6].tolist())
    return f"({few}{', ...' if x.numel() > 6 else ''})"
