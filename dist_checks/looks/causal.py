"""What an output depends on: a token is changed, and outputs before and after it are looked at."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dist_checks.looks.outputs import positions, quietly, with_positions
from dist_checks.recipes.base import IGNORE, Batch, Recipe

BATCH = 4
"""Samples."""


def causal(
    model: nn.Module, recipe: Recipe | None, batch: Batch, tokens: Tensor | None = None
) -> dict[str, Any] | None:
    """``{at, earlier, later, back}``: all tokens after position ``at`` are changed; the largest change of an output up
    to there, that of any output after; and that of the output at ``at`` when only tokens before it are changed. None
    where outputs are not one for each token. Outputs without a target may see what they like: padding, and a prompt
    that is read in both directions. ``tokens``: where the inputs are no padding, where the targets do not say it."""
    inputs = batch.inputs
    if inputs.ndim != 2 or inputs.is_floating_point():
        return None
    real = batch.targets != IGNORE
    if real.shape != inputs.shape or not bool(real.any()):
        return None
    at = min(max(1, int(real.nonzero()[:, 1].median())), inputs.shape[1] - 2)
    with quietly(model):
        right = positions(model(inputs), batch)
        if right is None or inputs.shape[1] < 3:
            return None
        after, before = inputs.clone(), inputs.clone()
        others = _others(inputs, real if tokens is None else tokens)
        after[:, at + 1 :], before[:, :at] = others[:, at + 1 :], others[:, :at]
        changed, back = positions(model(after), batch), positions(model(before), batch)
        assert changed is not None
        assert back is not None
    difference = (changed - right).abs()
    return {
        "at": at,
        "earlier": _largest(difference[:, : at + 1][real[:, : at + 1]]),
        "later": _largest(difference[:, at + 1 :][real[:, at + 1 :]]),
        "back": _largest((back - right)[:, at][real[:, at]].abs()),
    }


def _others(inputs: Tensor, real: Tensor) -> Tensor:
    """Other tokens of the same batch in the place of each that is no padding."""
    pool: Tensor = inputs[real].unique()  # type: ignore[no-untyped-call]
    places = torch.searchsorted(pool, inputs.contiguous()).clamp(max=len(pool) - 1)
    other = pool[(places + max(1, len(pool) // 2)) % len(pool)]
    return torch.where(real, other, inputs)


def _largest(x: Tensor) -> float:
    return float(x.max()) if x.numel() else 0.0


def alignment(model: nn.Module, recipe: Recipe, batch: Batch) -> dict[str, Any] | None:
    """``{losses: {offset: loss per target}}`` of outputs that foretell, at each position, the token ``offset`` places
    on: 1 is the next token, 0 the token itself. None where outputs are no logits for each token."""
    inputs = batch.inputs
    if inputs.ndim != 2 or inputs.is_floating_point():
        return None
    with quietly(model):
        output = model(inputs)
        logits = positions(output, batch)
        if logits is None or int(inputs.max()) >= logits.shape[-1]:
            return None
        found = {}
        for offset in (0, 1, 2, 3):
            told = inputs.roll(-offset, dims=1)
            sure = 10.0 * nn.functional.one_hot(told, logits.shape[-1]).to(logits)
            loss_sum, count = recipe.loss(with_positions(output, batch, sure), batch)
            found[str(offset)] = float(loss_sum) / max(count, 1)
    return {"losses": found}


def documents(model: nn.Module, recipe: Recipe, batch: Batch) -> dict[str, Any] | None:
    """``{first, other, moved}``: the first document of each packed sample is changed; the largest change of an output
    in it, and in the documents after it; then the second document is put before the first, and the largest change of
    its outputs is ``moved``, None where the recipe knows it for no document of its own there. None where nothing is
    packed."""
    numbers = recipe.documents(batch)
    if numbers is None or batch.inputs.ndim != 2:
        return None
    first = numbers == numbers[:, :1]
    others = ~first & (numbers >= 0)
    if not bool(others.any()):
        return None
    with quietly(model):
        right = positions(model(batch.inputs), batch)
        others_there = _others(batch.inputs, batch.targets != IGNORE)
        changed = positions(model(torch.where(first, others_there, batch.inputs)), batch)
        if right is None or changed is None:
            return None
        moved = _moved(model, recipe, batch, numbers, right)
    difference = (changed - right).abs().flatten(2).amax(-1)
    return {"first": _largest(difference[first]), "other": _largest(difference[others]), "moved": moved}


def _moved(model: nn.Module, recipe: Recipe, batch: Batch, numbers: Tensor, right: Tensor) -> float | None:
    """The largest change of outputs of the second document of each sample where that comes first."""
    later = (numbers != numbers[:, :1]) & (numbers >= 0)
    start = later.long().argmax(1, keepdim=True)
    second = later & (numbers == numbers.gather(1, start))
    order = (~second).long().argsort(dim=1, stable=True)
    swapped = Batch(batch.inputs.gather(1, order), batch.targets.gather(1, order))
    front = second.gather(1, order)
    again = recipe.documents(swapped)
    if again is None:
        return None
    # What marks a document may stand elsewhere than in its tokens: then it is another one when it is moved.
    whole = ((again == again[:, :1]) == front).all(1, keepdim=True) & (numbers[:, :1] >= 0)
    looked = front & whole
    outputs = positions(model(swapped.inputs), swapped)
    if outputs is None or not bool(looked.any()):
        return None
    outputs, right = outputs.flatten(2), right.flatten(2)
    difference = (outputs - right.gather(1, order[..., None].expand_as(right))).abs().amax(-1)
    return _largest(difference[looked])
