"""After learning: which classes are told apart, which are taken for each other, and which samples are furthest off."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from dist_checks.looks.outputs import quietly
from dist_checks.recipes.base import IGNORE, Batch, Recipe

MOST_CLASSES = 64
MATRIX = 16
"""Classes of which a whole matrix is written down."""
MOST = 2048
"""Samples."""
CHUNK = 64
WORST = 8
"""Samples that are shown."""


def classes(
    model: nn.Module, recipe: Recipe, ids: Sequence[int], collate: Callable[[Sequence[int]], Batch]
) -> dict[str, Any] | None:
    """``{names, counts, right, losses}`` by class (losses are sums), ``confusion [[label, said, count]]`` of what is
    taken for something else, the most frequent first, ``matrix`` (a row for each label, of how often each was said;
    None where there are many) and ``worst [{id, label, said, loss, text, at}]``, ``at`` a token's place in it.
    Of tags, having one and not having it are two classes. None where the recipe foretells tokens, or outputs are not
    one row of logits for each target."""
    names = _names(recipe)
    total = len(names)
    if recipe.next_token or not 1 < total <= MOST_CLASSES:
        return None
    counts, right, losses = [0] * total, [0] * total, [0.0] * total
    said = [[0] * total for _ in names]
    worst: list[dict[str, Any]] = []
    with quietly(model):
        for start in range(0, min(len(ids), MOST), CHUNK):
            mine = ids[start : start + CHUNK]
            batch = collate(mine)
            rows = _rows(model(batch.inputs), batch, recipe)
            if rows is None:
                return None
            for (row, *at), label, guess, loss in rows:
                if label >= total:
                    continue
                counts[label] += 1
                right[label] += label == guess
                losses[label] += loss
                said[label][guess] += 1
                if label != guess:
                    place = at[0] if at and recipe.tags is None else None
                    worst.append({"id": mine[row], "label": label, "said": guess, "loss": loss, "at": place})
    worst = sorted(worst, key=lambda each: -each["loss"])[:WORST]
    for each in worst:
        each["text"] = _text(recipe, recipe.collate([each["id"]]).inputs[0])
    taken = Counter({(a, b): n for a, row in enumerate(said) for b, n in enumerate(row) if n and a != b})
    return {
        "names": names,
        "counts": counts,
        "right": right,
        "losses": losses,
        "confusion": [[label, guess, count] for (label, guess), count in taken.most_common(WORST)],
        "matrix": said if recipe.tags is None and total <= MATRIX else None,
        "worst": worst,
    }


def _names(recipe: Recipe) -> list[str]:
    if recipe.tags is not None:
        return [name for tag in recipe.tags for name in (tag, f"no {tag}")]
    return [recipe.label(number) for number in range(min(recipe.classes, MOST_CLASSES + 1))]


Row = tuple[list[int], int, int, float]
"""Where a target is in its batch, its label, what was said, and its loss."""


def _rows(output: Any, batch: Batch, recipe: Recipe) -> Iterator[Row] | None:
    """Of each target that counts. None without logits that fit."""
    tags = recipe.tags is not None
    logits = _logits(output, batch, tags)
    if logits is None:
        return None
    many = 2 if tags else logits.shape[-1]
    there = (batch.targets != IGNORE) & (batch.targets >= 0) & (batch.targets < many)
    places = there.nonzero().tolist()
    targets, chosen = batch.targets[there].cpu(), logits[there].double().cpu()
    if tags:
        of = torch.tensor([2 * place[-1] for place in places], dtype=torch.int64)
        loss = functional.binary_cross_entropy_with_logits(chosen, targets.double(), reduction="none")
        labels, guesses = of + (targets == 0), of + (chosen <= 0)
    else:
        loss = functional.cross_entropy(chosen, targets, reduction="none")
        labels, guesses = targets, chosen[:, : recipe.classes].argmax(-1)
    return zip(places, labels.tolist(), guesses.tolist(), loss.tolist(), strict=True)


def _logits(output: Any, batch: Batch, tags: bool) -> Tensor | None:
    """The first floating tensor that has a row for each target, or a number for each tag."""
    for leaf in tree_leaves(output):
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or not leaf.ndim:
            continue
        if (leaf.shape if tags else leaf.shape[:-1]) == batch.targets.shape:
            return leaf
    return None


def _text(recipe: Recipe, x: Tensor) -> str:
    if not x.is_floating_point():
        return recipe.decode(x.flatten().tolist())[:200]
    few = ", ".join(f"{value:.3g}" for value in x.flatten()[:6].tolist())
    return f"({few}{', ...' if x.numel() > 6 else ''})"
