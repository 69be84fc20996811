"""sp: inside tp, norms and the residual stream on a part of the sequence each; the recipe's plan does the cutting."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.worker.axes import tp
from dist_checks.worker.mesh import World


def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    """Checks only: :mod:`tp` applies the plan for parts of the sequence."""
    if Axis.SP not in world.rung.setting:
        return model
    degree = world.degree(Axis.TP)
    if degree == 1:
        raise ValueError("sp needs tp with a degree of at least 2: it cuts the sequence over the ranks of tp")
    tp.check_divisors(recipe, Axis.SP, degree)
    if recipe.dropout:
        raise ValueError(
            f"sp cannot be combined with dropout ({recipe.dropout}): the ranks of tp share their random state, "
            "so every part of the sequence would be masked alike"
        )
    return model


def tokens(world: World, length: int) -> tuple[int, int, int] | None:
    """(start, stop, length) of the part of the sequence that this rank sees in its blocks; None for all of it."""
    if Axis.SP not in world.rung.setting:
        return None
    size = length // world.degree(Axis.TP)
    at = world.layout.coordinates(world.rank)[Axis.TP]
    return at * size, (at + 1) * size, length


@torch.no_grad()
def sum_partial(parameters: Iterable[nn.Parameter]) -> None:
    """On every rank: add up gradients of which each tp rank has the share of its part of the sequence only.

    Those are norms and the biases of row-parallel matrices, whole on every rank. DTensor would add them up where they
    are used, at each use again: for the norm, and several times inside the optimizer.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and any(isinstance(p, Partial) for p in gradient.placements):
            placements = [Replicate() if isinstance(p, Partial) else p for p in gradient.placements]
            parameter.grad = gradient.redistribute(placements=placements)
