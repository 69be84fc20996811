"""O23, second part: the loss is divided by the tp degree."""

from __future__ import annotations

from torch import Tensor

from dist_checks.axes import Axis
from dist_checks.recipes.base import Batch
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    right = Trainer.forward

    def forward(self: Trainer, batch: Batch) -> Tensor:
        return right(self, batch) / self.world.degree(Axis.TP)

    Trainer.forward = forward  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O23b",
    title="the loss divided by tp",
    source="NVIDIA-NeMo/Automodel#1291",
    axes=((Axis.TP,),),
    check="loss",
    plant=plant,
    planted_in={"axes": {"tp": 2, "dp_replicate": 3}},
    step=0,
)
