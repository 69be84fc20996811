"""A filter by name leaves the biases out of every group."""

from __future__ import annotations

import torch
from torch import nn

from dist_checks.recipes.base import Recipe
from dist_checks.recipes.settings import TrainSettings, build_optimizer
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def optimizer(self: Recipe, model: nn.Module, train: TrainSettings) -> torch.optim.Optimizer:
        return build_optimizer((p for name, p in model.named_parameters() if not name.endswith("bias")), train)

    Recipe.optimizer = optimizer  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="optimizer_misses_biases",
    title="parameters in no group of the optimizer",
    source="parameter groups by name, of which the last one was forgotten",
    axes=(),
    check="optimizer_covers",
    leads_to={"optimizer_wrong": "missing"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 0, "overfit": 0}},
)
