"""The optimizer goes uphill: gradients are those of the log-likelihood, not of its negative."""

from __future__ import annotations

from torch import Tensor

from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    right = Trainer.normalise

    def normalise(self: Trainer, loss_sum: Tensor, total: int) -> Tensor:
        return -right(self, loss_sum, total)

    Trainer.normalise = normalise  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="loss_negated",
    title="a loss with the wrong sign",
    source="a log-likelihood that is minimised",
    axes=(),
    check="loss_falls",
    leads_to={"loss_rises": "sign"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 120, "overfit": 0}},
)
