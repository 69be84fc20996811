"""The gradient partition of one rank is the sum over replicas, where it should be the mean."""

from __future__ import annotations

from typing import Any

import torch

from dist_checks.axes import ZERO_STAGES, Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer

RANK = 1


def plant(rung: Rung) -> None:
    right = Trainer.reduce

    def reduce(self: Trainer) -> None:
        right(self)
        if self.world.rank == RANK:
            engine: Any = self.model
            with torch.no_grad():
                for pieces in engine.optimizer.averaged_gradients.values():
                    for piece in pieces:
                        piece.mul_(self.data_size)

    if rung.setting.get(Axis.ZERO) in ZERO_STAGES:
        Trainer.reduce = reduce  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="partition_summed",
    title="the gradient partition of one rank is not divided by the number of replicas",
    source="deepspeedai/DeepSpeed#5618 is the same for the gradients of experts, which are divided by another group",
    axes=((Axis.ZERO,),),
    check="gradients",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 2, "zero": 2, "accum": 5}, "combine": {"mode": "singles"}},
    needs=("deepspeed",),
    step=0,
)
