"""The optimizer was made before the model was rebuilt, and steps tensors that nobody trains."""

from __future__ import annotations

import torch
from torch import nn

from dist_checks.recipes.base import Recipe
from dist_checks.recipes.settings import TrainSettings, build_optimizer
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def optimizer(self: Recipe, model: nn.Module, train: TrainSettings) -> torch.optim.Optimizer:
        return build_optimizer([nn.Parameter(p.detach().clone()) for p in model.parameters()], train)

    Recipe.optimizer = optimizer  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="optimizer_holds_copies",
    title="an optimizer with stale parameters, on one device",
    source="huggingface/accelerate#3256, #2665",
    axes=(),
    check="optimizer_covers",
    leads_to={"optimizer_wrong": "stale"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 0, "overfit": 0}},
)
