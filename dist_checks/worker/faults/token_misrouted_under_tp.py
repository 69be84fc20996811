"""Ranks of tp that compute the same tokens send them to different experts."""

from __future__ import annotations

from torch import nn

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker.axes import tp
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.faults.token_misrouted import swap
from dist_checks.worker.mesh import World


def plant(rung: Rung) -> None:
    right = tp.apply

    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        if world.layout.coordinates(world.rank)[Axis.TP]:
            for router in recipe.routers(model).values():
                router.register_forward_hook(swap, prepend=True)
        return right(model, recipe, world)

    tp.apply = apply


FAULT = Fault(
    id="token_misrouted_under_tp",
    title="one rank of tp sends tokens of the last expert to the first",
    source="a router that is not computed alike on the ranks of tp, as with noise or a tie that each breaks by itself",
    axes=((Axis.TP,),),
    check="replicas",
    plant=plant,
    planted_in={"recipe": "moe", "axes": {"tp": 2, "dp_replicate": 3}, "combine": {"mode": "singles"}},
    step=0,
)
