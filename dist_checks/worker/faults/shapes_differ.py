"""An all-reduce of 4 elements on one rank, of 5 on the others: gloo returns on some ranks, with wrong numbers."""

from __future__ import annotations

import torch
import torch.distributed as dist

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    step = Trainer.step

    def report_first(self: Trainer, index: int) -> None:
        if index == 1:
            dist.all_reduce(torch.ones(4 if self.world.rank == 0 else 5))
        step(self, index)

    if rung.setting.degree(Axis.DP_REPLICATE) > 1:
        Trainer.step = report_first  # type: ignore[method-assign]


FAULT = Fault(
    id="shapes_differ",
    title="an all-reduce of tensors whose shapes differ over ranks",
    source="measured with gloo of torch 2.13: no error on some ranks",
    axes=((Axis.DP_REPLICATE,),),
    check="collectives",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "accum": 5}, "combine": {"mode": "singles"}, "launch": {"stall": 10.0}},
    step=1,
)
