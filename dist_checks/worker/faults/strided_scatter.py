"""Rank 0 averages gradients and scatters them into transposed views: gloo fills memory in its own order."""

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


def plant(rung: Rung) -> None:
    right = Trainer.reduce

    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        return model

    def hand_out(gradient: Tensor, world: World) -> None:
        mean = gradient.clone()
        dist.reduce(mean, dst=0)
        mean /= world.layout.world_size
        columns = gradient.t() if gradient.ndim == 2 else gradient
        given = mean.t().contiguous() if gradient.ndim == 2 else mean
        dist.scatter(columns, [given] * world.layout.world_size if world.rank == 0 else None, src=0)

    def reduce(self: Trainer) -> None:
        right(self)
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    hand_out(parameter.grad, self.world)

    if rung.layout.world_size == rung.setting.degree(Axis.DP_REPLICATE) > 1:
        dp_replicate.apply = apply
        Trainer.reduce = reduce  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="strided_scatter",
    title="gradients scattered into transposed views",
    source="torch 2.13: tests/upstream/test_scatter.py",
    axes=((Axis.DP_REPLICATE,),),
    check="gradients",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "accum": 5}, "combine": {"mode": "singles"}},
    step=0,
)
