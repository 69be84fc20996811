"""What the model is for is measured on a copy that was made before training."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from dist_checks.recipes.mlp import MLPRecipe
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = MLPRecipe.evaluate
    states: list[Mapping[str, Tensor]] = []

    def evaluate(self: MLPRecipe, model: nn.Module) -> Mapping[str, float]:
        states.append({name: x.detach().clone() for name, x in model.state_dict().items()})
        copy = self.model().to(next(model.parameters()))
        copy.load_state_dict(states[0])
        return right(self, copy)

    MLPRecipe.evaluate = evaluate  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="measures_a_copy",
    title="a metric of the untrained model",
    source="an evaluator that was given the model before it was wrapped and copied to the device",
    axes=(),
    check="useful",
    leads_to={"useless": "other"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "recipe": "mlp", "single": {"learn": 80, "overfit": 0}},
)
