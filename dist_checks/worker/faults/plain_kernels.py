"""Fused kernels are asked for, and the plain ones run: every number is right, and the job is slower."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker.axes import fused
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World


def plant(rung: Rung) -> None:
    right_apply, right_choose = fused.apply, fused.choose_kernels

    def without(world: World) -> World:
        return replace(world, rung=replace(world.rung, setting=world.rung.setting.without(Axis.FUSED)))

    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        return right_apply(model, recipe, without(world))

    def choose_kernels(optimizer: torch.optim.Optimizer, world: World) -> None:
        right_choose(optimizer, without(world))

    fused.apply, fused.choose_kernels = apply, choose_kernels


FAULT = Fault(
    id="fused_off",
    title="fused kernels silently not used",
    source="an attention mask or a dtype that no fused kernel takes",
    axes=((Axis.FUSED,),),
    check="engaged",
    plant=plant,
)
