"""The logits are ten times too large: an untrained model is sure of itself."""

from __future__ import annotations

from torch import Tensor

from dist_checks.recipes.gpt import GPT
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = GPT.forward

    def forward(self: GPT, tokens: Tensor) -> Tensor:
        return right(self, tokens) * 10

    GPT.forward = forward  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="logits_times_ten",
    title="logits scaled by ten",
    source="a temperature that was divided by twice, or a head without its scale",
    axes=(),
    check="step_zero",
    leads_to={"first_loss_high": "scale"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "options": {"width": 32}, "single": {"learn": 0, "overfit": 0}},
)
