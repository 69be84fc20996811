"""Labels were shuffled apart from their points: no model finds what they have in common."""

from __future__ import annotations

from collections.abc import Sequence

from dist_checks.recipes.base import Batch
from dist_checks.recipes.mlp import MLPRecipe
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = MLPRecipe.collate

    def collate(self: MLPRecipe, ids: Sequence[int]) -> Batch:
        return Batch(right(self, ids).inputs, right(self, [(id + 1) % len(self.labels) for id in ids]).targets)

    MLPRecipe.collate = collate  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="labels_shuffled",
    title="labels in another order than the inputs",
    source="a table of features and one of labels, of which one was sorted",
    axes=(),
    check="loss_falls",
    leads_to={"loss_at_frequencies": "labels"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "recipe": "mlp", "options": {"samples": 2000}, "single": {"learn": 60, "overfit": 0}},
)
