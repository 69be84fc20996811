"""O26 again: gradients are added up over data and cp ranks, and divided by the number of data ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker.axes import dp_replicate
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World


def plant(rung: Rung) -> None:
    right = dp_replicate.apply
    replicas = rung.layout.data_size

    def reduce(group: dist.ProcessGroup, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(bucket.buffer().div_(replicas), group=group, async_op=True)
        assert work is not None
        future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future

    reduce.__annotations__.clear()  # DDP takes none but its own, which are not exported

    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        wrapped = right(model, recipe, world)
        if isinstance(wrapped, DistributedDataParallel):
            wrapped.register_comm_hook(wrapped.process_group, reduce)
        return wrapped

    if rung.setting.degree(Axis.CP) > 1:
        dp_replicate.apply = apply


FAULT = Fault(
    id="O26-2",
    title="gradients summed over cp and divided by dp only",
    source="NVIDIA/Megatron-LM#906",
    axes=((Axis.CP,),),
    check="contributions",
    plant=plant,
    planted_in={"axes": {"cp": 2, "dp_replicate": 3}},
    step=0,
)
