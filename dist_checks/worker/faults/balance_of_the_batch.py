"""The balance of routers is averaged over the samples of a batch, so a sample adds what its neighbours make of it."""

from __future__ import annotations

from torch import Tensor

from dist_checks.recipes.base import Batch
from dist_checks.recipes.moe import MoERecipe
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def balance_sum(self: MoERecipe, balance: Tensor, batch: Batch) -> Tensor:
        return self.balance * balance.mean() * batch.counts.sum()

    MoERecipe.balance_sum = balance_sum  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="balance_of_the_batch",
    title="a loss that is no sum over samples: several data ranks rightly compute another one",
    source="measured: a balance over the whole batch differs by 16 % between one data rank and two",
    axes=(),
    blamed="recipe",
    check="additive",
    plant=plant,
    planted_in={"recipe": "moe", "axes": {"dp_replicate": 3}},
    step=0,
)
