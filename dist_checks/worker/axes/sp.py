"""sp: inside tp, norms and the residual stream on a part of the sequence each; the recipe's plan does the cutting."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.worker.axes import sequence, tp
from dist_checks.worker.mesh import World


def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    """Checks only: :mod:`tp` applies the plan for parts of the sequence."""
    if Axis.SP not in world.rung.setting:
        return model
    if world.degree(Axis.TP) == 1:
        raise ValueError("sp needs tp with a degree of at least 2: it cuts the sequence over the ranks of tp")
    tp.check_divisors(recipe, Axis.SP, world)
    sequence.refuse_dropout(recipe, Axis.SP)
    return model


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
