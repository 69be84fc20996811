"""The last expert is never chosen on the last rank of ep: its tokens go to the first one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker.axes import ep
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World


def swap(module: nn.Module, inputs: Any, output: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A hook of a router: where expert 0 is not chosen already, it takes the place of the last."""
    (chosen,) = (x for x in output if x.dtype == torch.int64)
    wrong = (chosen == chosen.max()) & (chosen.min(-1, keepdim=True).values > 0)
    swapped = torch.where(wrong, torch.zeros_like(chosen), chosen)
    return tuple(swapped if x is chosen else x for x in output)


def plant(rung: Rung) -> None:
    right = ep.apply

    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        if world.layout.coordinates(world.rank)[Axis.EP]:
            for router in recipe.routers(model).values():
                router.register_forward_hook(swap, prepend=True)
        return right(model, recipe, world)

    ep.apply = apply


FAULT = Fault(
    id="token_misrouted",
    title="one rank of ep sends tokens of the last expert to the first",
    source="a wrong table of experts on one rank",
    axes=((Axis.EP,),),
    check="routing",
    plant=plant,
    planted_in={"recipe": "moe", "axes": {"ep": 2, "dp_replicate": 3}, "combine": {"mode": "singles"}},
    step=0,
)
