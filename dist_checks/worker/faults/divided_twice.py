"""O10: each rank divides its sum by the targets of all ranks, and DDP averages what is divided already."""

from __future__ import annotations

from torch import Tensor

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    def normalise(self: Trainer, loss_sum: Tensor, total: int) -> Tensor:
        return loss_sum / total

    Trainer.normalise = normalise  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O10",
    title="divided by the targets of all ranks, and averaged over ranks: 1/N of the gradient",
    source="huggingface/transformers#37474",
    axes=((Axis.DP_REPLICATE,), (Axis.DP_SHARD,)),
    check="contributions",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "accum": 5}},
    step=0,
)
