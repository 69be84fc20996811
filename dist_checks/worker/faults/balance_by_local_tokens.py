"""O28: the balance term of a router is weighed by the tokens of one tp rank's share, so it depends on tp."""

from __future__ import annotations

from torch import Tensor

from dist_checks.axes import Axis
from dist_checks.recipes.base import Batch
from dist_checks.recipes.moe import MoERecipe
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = MoERecipe.balance_sum

    def balance_sum(self: MoERecipe, balance: Tensor, batch: Batch) -> Tensor:
        return right(self, balance, batch) / rung.setting.degree(Axis.TP)

    MoERecipe.balance_sum = balance_sum  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O28",
    title="the balance term weighed by local tokens: too small by tp",
    source="NVIDIA/Megatron-LM PR#5047, PR#3768",
    axes=((Axis.TP,),),
    check="forward",
    plant=plant,
    planted_in={"recipe": "moe", "axes": {"tp": 2, "ep": 2}, "combine": {"mode": "singles"}},
    step=0,
)
