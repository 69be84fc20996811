"""O23, first part: a module that tp does not cut is made from another random state on each tp rank."""

from __future__ import annotations

import torch
from torch import nn

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker.axes import tp
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World

MODULE = "norm"


def plant(rung: Rung) -> None:
    right = tp.apply

    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        generator = torch.Generator().manual_seed(world.layout.coordinates(world.rank)[Axis.TP])
        with torch.no_grad():
            for parameter in model.get_submodule(MODULE).parameters():
                parameter.add_(0.02 * torch.randn(parameter.shape, generator=generator).to(parameter))
        return right(model, recipe, world)

    if Axis.TP in rung.setting:
        tp.apply = apply


FAULT = Fault(
    id="O23a",
    title="a replicated module starts from other weights on each tp rank",
    source="NVIDIA-NeMo/Automodel#1291",
    axes=((Axis.TP,),),
    check="replicas",
    plant=plant,
    planted_in={"axes": {"tp": 2, "accum": 5}},
    step=-1,
)
