"""ep is asked for and silently not applied: every rank keeps all experts, and the numbers are right."""

from __future__ import annotations

from torch import nn

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker.axes import ep
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World


def plant(rung: Rung) -> None:
    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        return model

    def experts(model: nn.Module, recipe: Recipe, world: World) -> dict[str, nn.Module]:
        return {}

    ep.apply = apply
    ep.experts = experts


FAULT = Fault(
    id="ep_ignored",
    title="ep is silently not applied",
    source="an option that is read and not used",
    axes=((Axis.EP,),),
    check="engaged",
    plant=plant,
    planted_in={"recipe": "moe", "axes": {"ep": 2, "dp_replicate": 3}, "combine": {"mode": "singles"}},
)
