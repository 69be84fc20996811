"""The loss is multiplied by a scale that grows, and gradients are never divided by it: Adam and clipping hide it."""

from __future__ import annotations

from torch import Tensor

from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer

GROWTH = 1.1
"""A step."""


def plant(rung: Rung) -> None:
    normalise, step = Trainer.normalise, Trainer.step
    scale = 1.0

    def stepped(self: Trainer, index: int) -> None:
        nonlocal scale
        scale = GROWTH**index
        step(self, index)

    def scaled(self: Trainer, loss_sum: Tensor, total: int) -> Tensor:
        return scale * normalise(self, loss_sum, total)

    Trainer.step, Trainer.normalise = stepped, scaled  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="loss_scale_kept",
    title="a loss scale that grows and is not divided out",
    source="scaler.scale(loss).backward() without scaler.unscale_(optimizer) before clipping",
    axes=(),
    check="clipping",
    leads_to={"norm_grows": "scale"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 120, "overfit": 0}},
)
