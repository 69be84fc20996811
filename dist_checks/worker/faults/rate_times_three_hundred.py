"""The learning rate is three hundred times too high."""

from __future__ import annotations

from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    right = Trainer.set_learning_rate

    def set_learning_rate(self: Trainer, index: int) -> None:
        right(self, index)
        for group in self.optimizer.param_groups:
            group["lr"] *= 300

    Trainer.set_learning_rate = set_learning_rate  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="rate_times_three_hundred",
    title="a learning rate that is far too high",
    source="1 instead of 3e-3",
    axes=(),
    check="update_ratio",
    leads_to={"updates_large": "rate", "not_memorised": "rate"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 0, "overfit": 8, "overfit_steps": 400}},
)
