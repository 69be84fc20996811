"""The loss is a sum, not a mean: every gradient is clipped to the limit, whatever it was."""

from __future__ import annotations

from torch import Tensor

from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    def normalise(self: Trainer, loss_sum: Tensor, total: int) -> Tensor:
        return loss_sum

    Trainer.normalise = normalise  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="loss_summed",
    title="a loss that is not divided by its targets",
    source="reduction='sum'",
    axes=(),
    check="clipping",
    leads_to={"clipped_always": "limit"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 120, "overfit": 0}},
)
