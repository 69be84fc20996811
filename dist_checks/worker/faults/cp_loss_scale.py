"""O26: the loss is multiplied by cp to make up for a mean over cp ranks that gradients are never divided by."""

from __future__ import annotations

from torch import Tensor

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    right = Trainer.normalise

    def normalise(self: Trainer, loss_sum: Tensor, total: int) -> Tensor:
        return right(self, loss_sum, total) * self.world.degree(Axis.CP)

    Trainer.normalise = normalise  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O26",
    title="loss multiplied by cp, gradients divided by dp only",
    source="NVIDIA/Megatron-LM#906",
    axes=((Axis.CP,),),
    check="contributions",
    plant=plant,
    planted_in={"axes": {"cp": 2, "accum": 5}, "combine": {"mode": "singles"}},
    step=0,
)
