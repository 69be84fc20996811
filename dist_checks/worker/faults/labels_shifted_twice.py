"""Data and loss shift the labels both: the model learns the token after the next."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dist_checks.recipes.base import IGNORE, Batch
from dist_checks.recipes.gpt import GPTRecipe
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = GPTRecipe.collate

    def collate(self: GPTRecipe, ids: Sequence[int]) -> Batch:
        batch = right(self, ids)
        later = torch.full_like(batch.targets, IGNORE)
        later[:, :-1] = batch.targets[:, 1:]
        return Batch(batch.inputs, later)

    GPTRecipe.collate = collate  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="labels_shifted_twice",
    title="labels shifted twice",
    source="labels that the data set has shifted already, in a model that shifts them again",
    axes=(),
    check="alignment",
    leads_to={"alignment": "twice"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 2, "overfit": 0}},
)
