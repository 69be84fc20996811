"""Validation texts are cut off after a few tokens, training texts are not."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dist_checks.recipes.base import IGNORE, Batch
from dist_checks.recipes.gpt import GPTRecipe
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault

KEPT = 3


def plant(rung: Rung) -> None:
    right = GPTRecipe.collate

    def collate(self: GPTRecipe, ids: Sequence[int]) -> Batch:
        batch = right(self, ids)
        cut = torch.tensor([id >= self.samples for id in ids]).unsqueeze(1) & (torch.arange(self.length) >= KEPT)
        return Batch(batch.inputs.masked_fill(cut, 0), batch.targets.masked_fill(cut, IGNORE))

    GPTRecipe.collate = collate  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="validation_cut",
    title="validation data prepared in another way",
    source="a second script with another max_length",
    axes=(),
    check="data_validation",
    leads_to={"drifted": "source"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 2, "overfit": 0}},
)
