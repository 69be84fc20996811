"""Augmentation runs on validation samples: one byte of each is drawn anew."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dist_checks.recipes.base import Batch
from dist_checks.recipes.gpt import GPTRecipe
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = GPTRecipe.collate

    def collate(self: GPTRecipe, ids: Sequence[int]) -> Batch:
        batch = right(self, ids)
        held = torch.tensor([id >= self.samples for id in ids])
        drawn = torch.randint(97, 123, (len(ids),))
        batch.inputs[:, 3] = torch.where(held, drawn, batch.inputs[:, 3])
        return batch

    GPTRecipe.collate = collate  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="validation_augmented",
    title="augmentation on validation data",
    source="a transform that is shared by both data sets",
    axes=(),
    check="data_validation",
    leads_to={"random_validation": "augmentation"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 2, "overfit": 0}},
)
