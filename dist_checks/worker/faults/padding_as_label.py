"""Padding is trained on: its id is a target like any other."""

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
        return Batch(batch.inputs, torch.where(batch.targets == IGNORE, 0, batch.targets))

    GPTRecipe.collate = collate  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="padding_as_label",
    title="the id of padding as a label",
    source="labels = input_ids.clone() of a padded batch",
    axes=(),
    check="data_padding",
    leads_to={"padding_counts": "pad"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 2, "overfit": 0}},
)
