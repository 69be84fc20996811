"""O08: one data rank has a batch more than the others and waits for an all-reduce that nobody else joins."""

from __future__ import annotations

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    right = Trainer.step

    def step(self: Trainer, index: int) -> None:
        right(self, index)
        if self.world.data_rank == self.data_size - 1 and index == self.rung.steps - 1:
            right(self, index + 1)

    if rung.layout.data_size > 1:
        Trainer.step = step  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O08",
    title="uneven batches: one data rank has one more",
    source="pytorch/pytorch#33148",
    axes=((Axis.DP_REPLICATE,), (Axis.DP_SHARD,)),
    check="collectives",
    plant=plant,
    planted_in={
        "axes": {"dp_replicate": 3, "accum": 5},
        "steps": 2,
        "combine": {"mode": "singles"},
        "launch": {"stall": 10.0},
    },
    step=2,
)
