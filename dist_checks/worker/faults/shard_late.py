"""The last rank's shard of one gradient is that of the step before: its buffer was reduced and not copied out."""

from __future__ import annotations

import torch
from torch import Tensor

from dist_checks.axes import Axis
from dist_checks.recipes.base import local
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer

TENSOR = "blocks.1.mlp.up.weight"


def plant(rung: Rung) -> None:
    right = Trainer.reduce
    kept: list[Tensor] = []

    def reduce(self: Trainer) -> None:
        right(self)
        if self.world.rank != self.world.layout.world_size - 1:
            return
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if name == TENSOR and parameter.grad is not None:
                    gradient = local(parameter.grad)
                    now = gradient.clone()
                    if kept:
                        gradient.copy_(kept.pop())
                    kept.append(now)

    if rung.setting.degree(Axis.DP_SHARD) > 1:
        Trainer.reduce = reduce  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="shard_late",
    title="one shard of one gradient is a step late",
    source="deepspeedai/DeepSpeed PR#7965 is a race over such buffers",
    axes=((Axis.DP_SHARD,),),
    check="gradients",
    plant=plant,
    planted_in={"axes": {"dp_shard": 3, "accum": 5}, "combine": {"mode": "singles"}},
    step=1,
)
