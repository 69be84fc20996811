"""O20 again: squares are added up over shards only where a dim of the mesh is called "fsdp", which none is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dist_checks.axes import Axis
from dist_checks.recipes.base import local
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    def total_norm(self: Trainer, parameters: Sequence[nn.Parameter]) -> Tensor:
        square, sharded = torch.zeros((), dtype=torch.float64), False
        for gradient in (parameter.grad for parameter in parameters if parameter.grad is not None):
            square += local(gradient).double().square().sum()
            sharded |= isinstance(gradient, DTensor) and "fsdp" in (gradient.device_mesh.mesh_dim_names or ())
        if sharded:
            dist.all_reduce(square)
        return square.sqrt()

    if rung.setting.degree(Axis.DP_SHARD) > 1:
        Trainer.total_norm = total_norm  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O20-2",
    title="a norm that is added up over shards under another name of the mesh only",
    source="RLinf/RLinf PR#1558",
    axes=((Axis.DP_SHARD,),),
    check="grad_norm",
    plant=plant,
    planted_in={"axes": {"dp_shard": 3, "accum": 5}, "combine": {"mode": "singles"}},
    step=0,
)
