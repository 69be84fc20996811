"""dp_shard: parameters, gradients and optimizer state sharded by FSDP2; with dp_replicate, HSDP on a mesh of both.

Under cp they are sharded over the ranks of both: those of a cp group need the same sum of gradients. So it is under ep,
but for the experts, of which those of a rank are sharded over dp_shard.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.worker.axes import ep, pp, precision
from dist_checks.worker.mesh import World


def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    """Also where dp_shard is off and the precision is FSDP2's: on a mesh of one rank it casts as on many."""
    if not world.sharded:
        return model
    # Experts first: what is sharded already is left alone by the modules around it.
    shard(ep.experts(model, recipe, world).values(), world, Axis.DP_SHARD)

    def shard_layers(part: nn.Module) -> nn.Module:
        shard((*recipe.blocks(part).values(), part), world, Axis.DP_SHARD, Axis.EP, Axis.CP)
        return part

    return pp.each(model, shard_layers)


def shard(modules: Iterable[nn.Module], world: World, *axes: Axis) -> None:
    """Over the ranks of ``axes``, copied over dp_replicate."""
    mesh = world.flat(*axes)
    if world.degree(Axis.DP_REPLICATE) > 1:
        mesh = DeviceMesh._concatenate([world.submesh(Axis.DP_REPLICATE), mesh])
    for module in modules:
        fully_shard(module, mesh=mesh, mp_policy=precision.policy(world))
