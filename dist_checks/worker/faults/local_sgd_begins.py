"""After three steps DDP's hook for local SGD averages over a subgroup only, and nobody averages the weights."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.nn.parallel import DistributedDataParallel

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker.axes import dp_replicate
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World

FROM = 3


def plant(rung: Rung) -> None:
    right = dp_replicate.apply

    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        wrapped = right(model, recipe, world)
        if isinstance(wrapped, DistributedDataParallel):
            alone, _ = dist.new_subgroups(group_size=1)  # type: ignore[no-untyped-call]
            state = PostLocalSGDState(wrapped.process_group, alone, start_localSGD_iter=FROM)  # type: ignore[no-untyped-call]
            wrapped.register_comm_hook(state, post_localSGD_hook)
        return wrapped

    if rung.layout.world_size == rung.setting.degree(Axis.DP_REPLICATE) > 1:
        dp_replicate.apply = apply


FAULT = Fault(
    id="local_sgd_begins",
    title="from step 3 on gradients are averaged over a subgroup only",
    source="torch.distributed: post_localSGD_hook without its PeriodicModelAverager",
    axes=((Axis.DP_REPLICATE,),),
    check="replicas",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "tp": 2}, "steps": 5, "combine": {"mode": "singles"}},
    step=FROM,
)
