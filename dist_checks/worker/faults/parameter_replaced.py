"""O15: a parameter is replaced after DDP has put its hooks on the old one."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker.axes import dp_replicate
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World


def plant(rung: Rung) -> None:
    right = dp_replicate.apply

    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        wrapped = right(model, recipe, world)
        if isinstance(wrapped, DistributedDataParallel):
            norm = wrapped.module.get_submodule("norm")
            assert isinstance(norm.weight, torch.Tensor)
            norm.weight = nn.Parameter(norm.weight.detach().clone())
        return wrapped

    dp_replicate.apply = apply


FAULT = Fault(
    id="O15",
    title="a parameter replaced after DDP: its gradient stays on its rank",
    source="pytorch/pytorch#12603",
    axes=((Axis.DP_REPLICATE,),),
    check="replicas",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "accum": 5}, "combine": {"mode": "singles"}},
    step=0,
)
