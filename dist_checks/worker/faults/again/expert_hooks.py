"""O27 again: hooks on the experts' parameters make up for a division by all data ranks that the loop does itself."""

from __future__ import annotations

import torch
from torch import nn

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker.axes import ep
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World


def plant(rung: Rung) -> None:
    right = ep.apply
    degree = rung.setting.degree(Axis.EP)

    def larger(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * degree

    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        model = right(model, recipe, world)
        for module in ep.experts(model, recipe, world).values():
            for parameter in module.parameters():
                parameter.register_hook(larger)  # type: ignore[no-untyped-call]
        return model

    if degree > 1:
        ep.apply = apply


FAULT = Fault(
    id="O27-2",
    title="expert gradients multiplied by ep in hooks",
    source="deepspeedai/DeepSpeed#5618, PR#6546, PR#5259",
    axes=((Axis.EP,),),
    check="gradients",
    plant=plant,
    planted_in={"recipe": "moe", "axes": {"ep": 2, "dp_replicate": 3}, "combine": {"mode": "singles"}},
    step=0,
)
