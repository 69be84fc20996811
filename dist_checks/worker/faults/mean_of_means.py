"""O09: each micro-batch on each rank is divided by its own targets, and the means are averaged."""

from __future__ import annotations

from collections.abc import Sequence

from dist_checks.axes import Axis
from dist_checks.recipes.base import Batch
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    right = Trainer.micro_step

    def micro_step(self: Trainer, epoch: int, ids: Sequence[int], batch: Batch, total: int, last: bool) -> float:
        return right(self, epoch, ids, batch, batch.count * self.accum * self.data_size, last)

    Trainer.micro_step = micro_step  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O09",
    title="mean of means: targets in short batches weigh more",
    source="huggingface/transformers#34242, #24725",
    axes=((Axis.ACCUM,), (Axis.DP_REPLICATE,), (Axis.DP_SHARD,)),
    check="contributions",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "accum": 5, "ckpt_act": True}, "combine": {"mode": "singles"}},
    step=0,
)
