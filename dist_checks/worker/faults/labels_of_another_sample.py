"""Inputs and targets are shuffled apart: each sample has the targets of its neighbour."""

from __future__ import annotations

from collections.abc import Sequence

from dist_checks.recipes.base import Batch
from dist_checks.recipes.gpt import GPTRecipe
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = GPTRecipe.collate

    def collate(self: GPTRecipe, ids: Sequence[int]) -> Batch:
        other = right(self, [(sample + 1) % self.samples for sample in ids])
        return Batch(right(self, ids).inputs, other.targets)

    GPTRecipe.collate = collate  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="labels_of_another_sample",
    title="labels of another sample",
    source="two files that are read in different orders",
    axes=(),
    check="alignment",
    leads_to={"alignment": "none"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 2, "overfit": 0}},
)
