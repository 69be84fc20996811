"""dp_replicate: replicas that average their gradients. DDP alone; torch's replicate over tp; HSDP under dp_shard.

The ranks of a cp group are such replicas too: whole parameters, and a loss over other tokens. So are those of an ep
group, of everything but the experts.
"""

from __future__ import annotations

from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.nn.parallel import DistributedDataParallel

from dist_checks import pipeline
from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.worker.axes import ep, pp, zero
from dist_checks.worker.mesh import World


def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    axes = (Axis.DP_REPLICATE, Axis.EP, Axis.CP)
    if all(world.degree(axis) == 1 for axis in axes) or world.sharded:
        return model  # dp_shard has replicated its shards already
    if zero.stage(world):
        return model  # DeepSpeed's engine makes replicas, and reduces their gradients
    mesh = world.flat(*axes)
    experts = ep.experts(model, recipe, world)

    def wrap(part: nn.Module) -> nn.Module:
        # Known to DDP by a mark on the model: it has no argument for it.
        names = [f"{path}.{name}" for path, module in experts.items() for name, _ in module.named_parameters()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(part, names)  # type: ignore[no-untyped-call]
        device_ids = None if world.device.type == "cpu" else [world.device]
        return DistributedDataParallel(part, device_ids=device_ids, process_group=mesh.get_group())

    def compose(part: nn.Module) -> nn.Module:
        ignored = {parameter for module in experts.values() for parameter in module.parameters()}
        for module in (*recipe.blocks(part).values(), part):
            replicate(module, mesh=mesh, ignored_params=ignored)
        return part

    # DDP refuses DTensor parameters, or, told to convert them, drops them from parameters(). Its reducer does not
    # outlive schedules that run several stages, or backward of inputs and of weights apart.
    plain = world.degree(Axis.TP) == 1 and pipeline.schedule(world.rung.setting) in ("gpipe", "1f1b")
    return pp.each(model, wrap if plain else compose)
