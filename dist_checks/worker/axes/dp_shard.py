"""dp_shard: parameters, gradients and optimizer state sharded by FSDP2; with dp_replicate, HSDP on a mesh of both.

Under cp they are sharded over the ranks of both: those of a cp group need the same sum of gradients.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.worker.mesh import World


def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    if world.degree(Axis.DP_SHARD) == 1:
        return model
    mesh = world.flat(Axis.DP_SHARD, Axis.CP)
    if world.degree(Axis.DP_REPLICATE) > 1:
        mesh = DeviceMesh._concatenate([world.submesh(Axis.DP_REPLICATE), mesh])
    for module in (*recipe.blocks(model).values(), model):
        fully_shard(module, mesh=mesh)
    return model
