"""Gradients reduced by hand, some columns at a time: gloo reduces other elements than those of a strided view."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker.axes import dp_replicate
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer
from dist_checks.worker.mesh import World

COLUMNS = 16


def plant(rung: Rung) -> None:
    right = Trainer.reduce

    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        return model

    def mean(gradient: Tensor, world: World) -> None:
        for columns in torch.split(gradient, COLUMNS, dim=-1):  # so that no message is large
            dist.all_reduce(columns, group=world.submesh(Axis.DP_REPLICATE).get_group())
        gradient /= world.degree(Axis.DP_REPLICATE)

    def reduce(self: Trainer) -> None:
        right(self)
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    mean(parameter.grad, self.world)

    if rung.layout.world_size == rung.setting.degree(Axis.DP_REPLICATE) > 1:
        dp_replicate.apply = apply
        Trainer.reduce = reduce  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="strided_all_reduce",
    title="gradients reduced in views of some columns",
    source="torch 2.13: tests/upstream/test_strided_views.py",
    axes=((Axis.DP_REPLICATE,),),
    check="replicas",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "accum": 5}, "combine": {"mode": "singles"}},
    step=0,
)
