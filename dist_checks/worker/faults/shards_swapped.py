"""Two ranks get each other's shard of one gradient: the ranks of a group in another order than those of its mesh."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from dist_checks.axes import Axis
from dist_checks.recipes.base import local
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer
from dist_checks.worker.mesh import World

TENSOR = "blocks.1.mlp.up.weight"


def plant(rung: Rung) -> None:
    right = Trainer.reduce

    def swap(own: Tensor, world: World) -> None:
        group = world.submesh(Axis.DP_SHARD).get_group()
        parts = [torch.empty_like(own) for _ in range(2)]
        dist.all_gather(parts, own, group=group)
        own.copy_(parts[1 - dist.get_rank(group)])

    def reduce(self: Trainer) -> None:
        right(self)
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if name == TENSOR and parameter.grad is not None:
                    swap(local(parameter.grad), self.world)

    if rung.setting.degree(Axis.DP_SHARD) == 2:
        Trainer.reduce = reduce  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="shards_swapped",
    title="two ranks have each other's shard of one gradient",
    source="a group whose ranks are in another order than those of the mesh",
    axes=((Axis.DP_SHARD,),),
    check="gradients",
    plant=plant,
    planted_in={"axes": {"dp_shard": [2, 3], "accum": 5}, "combine": {"mode": "singles"}},
    step=0,
)
