"""One tp rank stops in step 2, between forward and backward, and never says why: a lock, a network disk, a debugger."""

from __future__ import annotations

import time

from torch import Tensor

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    step, backward = Trainer.step, Trainer.backward

    def count(self: Trainer, index: int) -> None:
        self.index = index  # type: ignore[attr-defined]
        step(self, index)

    def sleep_first(self: Trainer, loss: Tensor) -> None:
        if getattr(self, "index", -1) == 2 and self.world.rank == 1:
            time.sleep(3600)
        backward(self, loss)

    if rung.setting.degree(Axis.TP) > 1:
        Trainer.step, Trainer.backward = count, sleep_first  # type: ignore[method-assign]


FAULT = Fault(
    id="rank_sleeps",
    title="a tp rank that stops in step 2",
    source="a model of a rank that waits for something of its own",
    axes=((Axis.TP,),),
    check="collectives",
    plant=plant,
    planted_in={"axes": {"tp": 2, "accum": 5}, "steps": 3, "combine": {"mode": "singles"}, "launch": {"stall": 10.0}},
    step=2,
)
