"""Whatever sample is asked for, one of the first few is trained on."""

from __future__ import annotations

from collections.abc import Sequence

from dist_checks.recipes.base import Batch
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer

FEW = 8


def plant(rung: Rung) -> None:
    right = Trainer.collate

    def collate(self: Trainer, ids: Sequence[int]) -> Batch:
        return right(self, [id if id >= self.recipe.samples else id % FEW for id in ids])

    Trainer.collate = collate  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="same_few_samples",
    title="training on the same few samples",
    source="an index modulo the size of a batch instead of the number of samples",
    axes=(),
    check="memorised",
    leads_to={"memorised": "data"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "train": {"learning_rate": 1e-2}, "single": {"learn": 120, "overfit": 0}},
)
