"""A collective of a subgroup, of the first two shards, in step 1: one of them has nothing to report and skips it."""

from __future__ import annotations

import torch
import torch.distributed as dist

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    run, step = Trainer.run, Trainer.step

    def make_group(self: Trainer) -> None:
        self.pair = dist.new_group([0, 1])  # type: ignore[attr-defined]
        run(self)

    def report_first(self: Trainer, index: int) -> None:
        if index == 1 and self.world.rank == 0:
            dist.all_reduce(torch.ones(7), group=self.pair)  # type: ignore[attr-defined]
        step(self, index)

    if rung.setting.degree(Axis.DP_SHARD) > 1:
        Trainer.run, Trainer.step = make_group, report_first  # type: ignore[method-assign]


FAULT = Fault(
    id="member_skips",
    title="a collective of a subgroup that one of its members skips",
    source="a model of statistics that only ranks with something to report take part in",
    axes=((Axis.DP_SHARD,),),
    check="collectives",
    plant=plant,
    planted_in={"axes": {"dp_shard": 3, "accum": 5}, "combine": {"mode": "singles"}, "launch": {"stall": 10.0}},
    step=1,
)
