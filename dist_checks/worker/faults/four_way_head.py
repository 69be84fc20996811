"""A tensor-parallel cut that is right for two ranks and wrong for four: the output projection of one block is added up
over pairs of ranks only."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker.axes import tp
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World

MODULE = "blocks.1.attention.o"


def plant(rung: Rung) -> None:
    if rung.setting.degree(Axis.TP) < 4:
        return
    right = tp.apply

    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        model = right(model, recipe, world)
        mine = world.layout.coordinates(world.rank)[Axis.TP]

        def silence(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            heads: Tensor = inputs[0]
            return (heads * 0 if mine >= 2 else heads, *inputs[1:])

        model.get_submodule(MODULE).register_forward_pre_hook(silence, prepend=True)
        return model

    tp.apply = apply


FAULT = Fault(
    id="tp4_reduced_in_pairs",
    title="with four tp ranks, two of them left out of a sum",
    source="a process group of fixed size",
    axes=((Axis.TP,),),
    check="forward",
    plant=plant,
    planted_in={"axes": {"tp": [4, 2], "accum": 5}, "steps": 1, "combine": {"mode": "singles"}},
    step=0,
)
