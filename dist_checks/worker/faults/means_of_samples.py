"""The loss is the mean over samples of the means over their targets: short samples weigh more."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from dist_checks.recipes.base import IGNORE, Batch
from dist_checks.recipes.gpt import GPTRecipe
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def loss(self: GPTRecipe, output: Tensor, batch: Batch) -> tuple[Tensor, int]:
        each = F.cross_entropy(output.transpose(1, 2), batch.targets, ignore_index=IGNORE, reduction="none")
        return (each.sum(1) / batch.counts).mean() * batch.count, batch.count

    GPTRecipe.loss = loss  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="means_of_samples",
    title="mean of means in the loss",
    source="loss.mean(1).mean(0) over sequences of different lengths",
    axes=(),
    check="additive",
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 0, "overfit": 0}},
)
