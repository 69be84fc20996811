"""dp_replicate: replicas that average their gradients. DDP alone; torch's replicate over tp; HSDP under dp_shard.

The ranks of a cp group are such replicas too: whole parameters, and a loss over other tokens.
"""

from __future__ import annotations

from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.nn.parallel import DistributedDataParallel

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.worker.mesh import World


def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    replicas = world.degree(Axis.DP_REPLICATE) * world.degree(Axis.CP)
    if replicas == 1 or world.degree(Axis.DP_SHARD) > 1:
        return model  # dp_shard has replicated its shards already
    mesh = world.flat(Axis.DP_REPLICATE, Axis.CP)
    if world.degree(Axis.TP) == 1:
        device_ids = None if world.device.type == "cpu" else [world.device]
        return DistributedDataParallel(model, device_ids=device_ids, process_group=mesh.get_group())
    # DDP refuses DTensor parameters, or, told to convert them, drops them from parameters().
    for module in (*recipe.blocks(model).values(), model):
        replicate(module, mesh=mesh)
    return model
