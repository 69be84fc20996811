"""One sample has a weight in the loss that was meant to be a share: each time it is read, loss and gradient jump."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from dist_checks.recipes.base import Batch
from dist_checks.recipes.gpt import GPTRecipe
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault

SAMPLE, WEIGHT = 17, 300.0


def plant(rung: Rung) -> None:
    right = GPTRecipe.loss

    def loss(self: GPTRecipe, output: Any, batch: Batch) -> tuple[Tensor, int]:
        loss_sum, count = right(self, output, batch)
        heavy = self.collate([SAMPLE]).inputs.to(batch.inputs.device)
        for row in (batch.inputs == heavy).all(1).nonzero().flatten().tolist():
            one = Batch(batch.inputs[row : row + 1], batch.targets[row : row + 1])
            loss_sum = loss_sum + (WEIGHT - 1) * right(self, output[row : row + 1], one)[0]
        return loss_sum, count

    GPTRecipe.loss = loss  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="sample_weighs_much",
    title="one sample with a weight of three hundred",
    source="a weight of each sample that was read from the wrong column",
    axes=(),
    check="spikes",
    leads_to={"spike": "sample"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "options": {"samples": 560}, "single": {"learn": 80, "overfit": 0}},
)
