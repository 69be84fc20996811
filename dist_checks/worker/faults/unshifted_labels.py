"""The targets are the inputs themselves: the model learns to copy."""

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
        return Batch(batch.inputs, torch.where(batch.targets == IGNORE, IGNORE, batch.inputs))

    GPTRecipe.collate = collate  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="unshifted_labels",
    title="labels that are not shifted",
    source="a data set whose labels are a copy of input_ids, with a loss that does not shift them",
    axes=(),
    check="alignment",
    leads_to={"alignment": "unshifted"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 2, "overfit": 0}},
)
