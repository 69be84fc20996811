"""O08: one data rank has a batch more than the others and waits for an all-reduce that nobody else joins."""

from __future__ import annotations

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    run = Trainer.run

    def run_once_more(self: Trainer) -> None:
        if self.world.data_rank == self.data_size - 1:
            close, self.probe.close = self.probe.close, lambda: None  # type: ignore[method-assign]
            run(self)
            self.step(self.rung.steps)
            close()
        else:
            run(self)

    if rung.layout.data_size > 1:
        Trainer.run = run_once_more  # type: ignore[method-assign]


FAULT = Fault(
    id="O08",
    title="uneven batches: one data rank has one more",
    source="pytorch/pytorch#33148",
    axes=((Axis.DP_REPLICATE,), (Axis.DP_SHARD,)),
    check="collectives",
    plant=plant,
)
