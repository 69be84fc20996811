"""Activation checkpointing is configured and never applied: memory is what it was, and every number is right."""

from __future__ import annotations

from torch import nn

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker.axes import ckpt_act
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World


def plant(rung: Rung) -> None:
    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        return model

    ckpt_act.apply = apply


FAULT = Fault(
    id="ckpt_act_off",
    title="activation checkpointing silently not applied",
    source="a wrapper whose name filter matches no module",
    axes=((Axis.CKPT_ACT,),),
    check="engaged",
    plant=plant,
)
