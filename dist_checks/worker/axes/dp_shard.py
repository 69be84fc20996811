"""dp_shard: parameters, gradients and optimizer state sharded by FSDP2; with dp_replicate, HSDP on a mesh of both."""

from __future__ import annotations

from torch import nn
from torch.distributed.fsdp import fully_shard

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.worker.mesh import World


def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    if world.degree(Axis.DP_SHARD) == 1:
        return model
    hybrid = world.degree(Axis.DP_REPLICATE) > 1
    mesh = world.submesh(Axis.DP_REPLICATE, Axis.DP_SHARD) if hybrid else world.submesh(Axis.DP_SHARD)
    for module in (*recipe.blocks(model).values(), model):
        fully_shard(module, mesh=mesh)
    return model
