"""Points come in raw units, from 0 to 255."""

from __future__ import annotations

from collections.abc import Sequence

from dist_checks.recipes.base import Batch
from dist_checks.recipes.mlp import MLPRecipe
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = MLPRecipe.collate

    def collate(self: MLPRecipe, ids: Sequence[int]) -> Batch:
        batch = right(self, ids)
        return Batch(128.0 + 40.0 * batch.inputs, batch.targets)

    MLPRecipe.collate = collate  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="inputs_not_normalised",
    title="inputs in raw units",
    source="a transform that was left out for one data set",
    axes=(),
    check="data_inputs",
    leads_to={"inputs_wide": "scale"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "recipe": "mlp", "single": {"learn": 2, "overfit": 0}},
)
