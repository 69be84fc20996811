"""A condition that only one data rank fulfils leads to another collective there, an all-gather for an all-reduce."""

from __future__ import annotations

import torch
import torch.distributed as dist

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    step, count_targets = Trainer.step, Trainer.count_targets

    def count_steps(self: Trainer, index: int) -> None:
        self.index = index  # type: ignore[attr-defined]
        step(self, index)

    def gather_targets(self: Trainer, targets: int) -> int:
        if getattr(self, "index", -1) != 1 or self.world.data_rank != self.data_size - 1:
            return count_targets(self, targets)
        mine = torch.tensor(float(targets), dtype=torch.float64, device=self.world.device)
        counts = [torch.zeros_like(mine) for _ in range(self.data_size)]
        dist.all_gather(counts, mine, group=self.world.loss_group)
        return round(sum(count.item() for count in counts))

    if rung.setting.degree(Axis.DP_REPLICATE) > 1:
        Trainer.step, Trainer.count_targets = count_steps, gather_targets  # type: ignore[method-assign]


FAULT = Fault(
    id="other_branch",
    title="a data rank that takes another branch, with another collective",
    source="a model of a condition on data that differs over ranks",
    axes=((Axis.DP_REPLICATE,),),
    check="collectives",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "accum": 5}, "combine": {"mode": "singles"}, "launch": {"stall": 10.0}},
    step=1,
)
