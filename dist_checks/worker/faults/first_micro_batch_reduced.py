"""O12: an off-by-one has DDP reduce the first micro-batch of a step, and not the one that steps."""

from __future__ import annotations

from collections.abc import Sequence

from torch.nn.parallel import DistributedDataParallel

from dist_checks.axes import Axis
from dist_checks.recipes.base import Batch
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    right = Trainer.micro_step
    number = 0

    def micro_step(self: Trainer, epoch: int, ids: Sequence[int], batch: Batch, total: int, last: bool) -> float:
        nonlocal number
        synced = number == 0 if isinstance(self.model, DistributedDataParallel) else last
        number = 0 if last else number + 1
        return right(self, epoch, ids, batch, total, synced)

    Trainer.micro_step = micro_step  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O12",
    title="the first micro-batch of a step is reduced, not the last",
    source="modelscope/FunASR PR#3472",
    axes=((Axis.ACCUM, Axis.DP_REPLICATE),),
    check="replicas",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "accum": 5}},
    step=0,
)
