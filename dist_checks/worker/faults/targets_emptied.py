"""In a third of the samples all targets but one are ignored."""

from __future__ import annotations

from collections.abc import Sequence

from dist_checks.recipes.base import IGNORE, Batch
from dist_checks.recipes.gpt import GPTRecipe
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = GPTRecipe.collate

    def collate(self: GPTRecipe, ids: Sequence[int]) -> Batch:
        batch = right(self, ids)
        for row, id in enumerate(ids):
            if id % 3 == 0:
                batch.targets[row, 1:] = IGNORE
        return batch

    GPTRecipe.collate = collate  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="targets_emptied",
    title="samples with next to nothing to learn from",
    source="an ignore index put on answers and prompts both",
    axes=(),
    check="data_duplicates",
    leads_to={"empty_samples": "filter"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 2, "overfit": 0}},
)
