"""Labels begin at 1, and the last layer was widened until nothing crashed."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from dist_checks.recipes.base import Batch
from dist_checks.recipes.mlp import MLP, MLPRecipe
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = MLPRecipe.collate

    def collate(self: MLPRecipe, ids: Sequence[int]) -> Batch:
        batch = right(self, ids)
        return Batch(batch.inputs, batch.targets + 1)

    def model(self: MLPRecipe) -> nn.Module:
        return MLP(self.width, self.classes + 1)

    MLPRecipe.collate = collate  # type: ignore[method-assign]  # that is what planting means
    MLPRecipe.model = model  # type: ignore[method-assign]


FAULT = Fault(
    id="labels_from_one",
    title="labels off by one",
    source="labels of a table that counts from 1",
    axes=(),
    check="data_labels",
    leads_to={"labels_wrong": "off_by_one"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "recipe": "mlp", "single": {"learn": 2, "overfit": 0}},
)
