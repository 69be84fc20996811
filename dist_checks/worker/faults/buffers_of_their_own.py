"""O16: each replica makes a buffer of its own, and DDP is told not to broadcast buffers."""

from __future__ import annotations

from typing import Any

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
    right, make = dp_replicate.apply, DistributedDataParallel.__init__

    def init(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **(kwargs | {"broadcast_buffers": False}))

    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]  # that is what planting means

    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        generator = torch.Generator().manual_seed(world.rank)
        with torch.no_grad():
            for buffer in model.buffers():
                buffer.add_(0.01 * torch.rand(buffer.shape, generator=generator).to(buffer))
        return right(model, recipe, world)

    if Axis.DP_REPLICATE in rung.setting and not {Axis.TP, Axis.DP_SHARD} & set(rung.setting):
        dp_replicate.apply = apply


FAULT = Fault(
    id="O16",
    title="buffers differ over replicas: made at random, and never broadcast",
    source="pytorch/pytorch#111138, #63916",
    axes=((Axis.DP_REPLICATE,),),
    check="replicas",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "accum": 5}},
    step=-1,
)
