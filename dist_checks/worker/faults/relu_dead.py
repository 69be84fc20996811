"""A bias holds the ReLUs of the MLPs below zero: they never open."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from dist_checks.recipes.gpt import MLP
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def forward(self: MLP, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x) - 10))  # type: ignore[no-any-return]

    MLP.forward = forward  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="relu_dead",
    title="dead ReLUs",
    source="a step that was too large, or a bias initialised to a negative number",
    axes=(),
    check="activations",
    leads_to={"dead": "bias"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 2, "overfit": 0}},
)
