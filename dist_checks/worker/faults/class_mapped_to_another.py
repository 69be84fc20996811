"""A table of class names has one twice: in training its samples have the label of another class."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dist_checks.recipes.base import Batch
from dist_checks.recipes.mlp import MLPRecipe
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault

GONE, TAKEN_FOR = 3, 4


def plant(rung: Rung) -> None:
    right = MLPRecipe.collate

    def collate(self: MLPRecipe, ids: Sequence[int]) -> Batch:
        batch = right(self, ids)
        mapped = (batch.targets == GONE) & (torch.tensor(list(ids)) < self.samples)
        return Batch(batch.inputs, batch.targets.masked_fill(mapped, TAKEN_FOR))

    MLPRecipe.collate = collate  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="class_mapped_to_another",
    title="one class has the label of another",
    source="a table of class names with one of them twice",
    axes=(),
    check="classes",
    leads_to={"class_never_right": "mapped"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "recipe": "mlp", "single": {"learn": 80, "overfit": 0}},
)
