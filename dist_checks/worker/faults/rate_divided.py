"""The learning rate is thirty times too low."""

from __future__ import annotations

from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    right = Trainer.set_learning_rate

    def set_learning_rate(self: Trainer, index: int) -> None:
        right(self, index)
        for group in self.optimizer.param_groups:
            group["lr"] /= 30

    Trainer.set_learning_rate = set_learning_rate  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="rate_divided",
    title="a learning rate that is far too low",
    source="1e-4 instead of 3e-3",
    axes=(),
    check="loss_falls",
    leads_to={"loss_slow": "rate", "expected_otherwise": "changed"},
    blamed="recipe",
    plant=plant,
    planted_in={
        "axes": {},
        "single": {"learn": 120, "overfit": 0},
        "expect": {"first_loss": 5.54, "loss": {"119": 2.68}},
    },
)
