"""One of the features is the label."""

from __future__ import annotations

from collections.abc import Sequence

from dist_checks.recipes.base import Batch
from dist_checks.recipes.mlp import MLPRecipe
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault

COLUMN = 5


def plant(rung: Rung) -> None:
    right = MLPRecipe.collate

    def collate(self: MLPRecipe, ids: Sequence[int]) -> Batch:
        batch = right(self, ids)
        batch.inputs[:, COLUMN] = batch.targets / self.classes
        return batch

    MLPRecipe.collate = collate  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="label_among_inputs",
    title="the label is one of the inputs",
    source="a table of which no column was dropped",
    axes=(),
    check="data_inputs",
    leads_to={"label_leak": "column"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "recipe": "mlp", "single": {"learn": 2, "overfit": 0}},
)
