"""Validation samples are taken from the training data."""

from __future__ import annotations

from collections.abc import Sequence

from dist_checks.recipes.base import Batch
from dist_checks.recipes.gpt import GPTRecipe
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = GPTRecipe.collate

    def collate(self: GPTRecipe, ids: Sequence[int]) -> Batch:
        return right(self, [id % self.samples for id in ids])

    GPTRecipe.collate = collate  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="validation_is_training",
    title="validation data in training",
    source="a split by position after shuffling twice",
    axes=(),
    check="data_validation",
    leads_to={"overlap": "split"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 2, "overfit": 0}},
)
