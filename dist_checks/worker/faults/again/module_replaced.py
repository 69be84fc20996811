"""O15 again: a module is exchanged for a copy of itself after DDP, as tools do that add adapters to a model."""

from __future__ import annotations

import copy

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker.axes import dp_replicate
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World

MODULE = "blocks.1.mlp"


def plant(rung: Rung) -> None:
    right = dp_replicate.apply

    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        wrapped = right(model, recipe, world)
        if isinstance(wrapped, DistributedDataParallel):
            path, _, name = MODULE.rpartition(".")
            setattr(wrapped.module.get_submodule(path), name, copy.deepcopy(wrapped.module.get_submodule(MODULE)))
        return wrapped

    dp_replicate.apply = apply


FAULT = Fault(
    id="O15-2",
    title="a module exchanged for a copy after DDP: the copy's gradients stay on their rank",
    source="pytorch/pytorch#12603",
    axes=((Axis.DP_REPLICATE,),),
    check="replicas",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "accum": 5}, "combine": {"mode": "singles"}},
    step=0,
)
