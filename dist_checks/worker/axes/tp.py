"""tp: matrices cut by columns and rows after the recipe's plan, embedding and loss parallel over the vocabulary."""

from __future__ import annotations

from collections import defaultdict
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.worker.mesh import World


def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    degree = world.degree(Axis.TP)
    if degree == 1:
        return model
    check_divisors(recipe, Axis.TP, world)
    plan = recipe.tensor_parallel_plan(sequence_parallel=Axis.SP in world.rung.setting)
    if plan is None:
        raise ValueError(f"tp needs a recipe with a tensor_parallel_plan; {recipe.name} has none")
    ties = tied(model)
    # src_data_rank=None: each rank cuts its own copy. All have made the same one, and where they have not, that is to
    # be seen in the trace, not to be mended by a broadcast.
    model = parallelize_module(model, world.submesh(Axis.TP), dict(plan), src_data_rank=None)
    for names in ties:
        tie(model, names)
    return model


def check_divisors(recipe: Recipe, axis: Axis, world: World) -> None:
    """ValueError unless the degree divides everything that ``axis`` cuts into as many parts."""
    for what, size in recipe.divisors().get(axis.value, {}).items():
        if rule := world.rung.setting.must_divide(axis, what, size):
            raise ValueError(f"{rule} of recipe {recipe.name} under {axis}")


def tied(model: nn.Module) -> list[list[str]]:
    """The names of parameters that several modules share, in groups."""
    names: dict[nn.Parameter, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[parameter].append(name)
    return [group for group in names.values() if len(group) > 1]


def tie(model: nn.Module, names: list[str]) -> None:
    """Make the parameters ``names`` one again: parallelize_module gives each module a parameter of its own."""
    first = model.get_parameter(names[0])
    for name in names[1:]:
        other = model.get_parameter(name)
        cuts = [p.placements if isinstance(p, DTensor) else () for p in (first, other)]
        if cuts[0] != cuts[1]:
            raise ValueError(f"tied parameters must be cut alike; the plan cuts {names[0]} {cuts[0]}, {name} {cuts[1]}")
        path, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(path), attribute, first)


def loss_context(world: World) -> AbstractContextManager[object]:
    """Around loss and backward of each micro-batch: cross entropy over logits that are sharded over the classes."""
    return loss_parallel() if world.degree(Axis.TP) > 1 else nullcontext()


def whole(value: torch.Tensor) -> torch.Tensor:
    """On every rank of a tp group: a DTensor's full value as a plain tensor; a plain tensor as it is."""
    return value.full_tensor() if isinstance(value, DTensor) else value
