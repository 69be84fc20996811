"""O20: gradients are clipped by the norm of this rank's FSDP shards, not of the whole gradient."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker import gradients
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    if rung.setting.degree(Axis.DP_SHARD) == 1:
        return

    def total_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
        own = [p.grad.to_local() if isinstance(p.grad, DTensor) else p.grad for p in parameters if p.grad is not None]
        return torch.nn.utils.get_total_norm(own)

    gradients.total_norm = total_norm


FAULT = Fault(
    id="O20",
    title="clipping by the norm of the local shard",
    source="RLinf/RLinf PR#1558",
    axes=((Axis.DP_SHARD,),),
    check="grad_norm",
    plant=plant,
    planted_in={"axes": {"dp_shard": 3, "accum": 5}, "combine": {"mode": "singles"}},
    step=0,
)
