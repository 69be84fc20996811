"""What the model is for is measured on a copy that was made before training."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

from torch import nn

from dist_checks.recipes.mlp import MLPRecipe
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = MLPRecipe.evaluate
    copies: list[nn.Module] = []

    def evaluate(self: MLPRecipe, model: nn.Module) -> Mapping[str, float]:
        copies.append(deepcopy(model))
        return right(self, copies[0])

    MLPRecipe.evaluate = evaluate  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="measures_a_copy",
    title="a metric of the untrained model",
    source="an evaluator that was given the model before it was wrapped and copied to the device",
    axes=(),
    check="useful",
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "recipe": "mlp", "single": {"learn": 80, "overfit": 0}},
)
