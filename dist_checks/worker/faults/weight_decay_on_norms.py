"""One group for everything: norms and biases decay with the rest."""

from __future__ import annotations

import torch
from torch import nn

from dist_checks.recipes.base import Recipe
from dist_checks.recipes.settings import TrainSettings
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def optimizer(self: Recipe, model: nn.Module, train: TrainSettings) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=train.learning_rate, weight_decay=train.weight_decay)

    Recipe.optimizer = optimizer  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="weight_decay_on_norms",
    title="weight decay on norms",
    source="AdamW(model.parameters(), weight_decay=0.1)",
    axes=(),
    check="weight_decay_groups",
    leads_to={"decayed_norms": "groups"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 0, "overfit": 0}},
)
