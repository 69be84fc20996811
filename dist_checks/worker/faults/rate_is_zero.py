"""The schedule gives zero for ever: weights never move, and the loss stays at ln(classes)."""

from __future__ import annotations

from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    def set_learning_rate(self: Trainer, index: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0

    Trainer.set_learning_rate = set_learning_rate  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="rate_is_zero",
    title="a learning rate of zero",
    source="a warm-up counted in epochs where steps were meant",
    axes=(),
    check="loss_falls",
    leads_to={"updates_small": "rate", "loss_stuck": "rate"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 120, "overfit": 0}},
)
