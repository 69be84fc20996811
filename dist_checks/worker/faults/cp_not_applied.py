"""Context parallelism that is configured and never applied: each of its ranks works on the whole sequence."""

from __future__ import annotations

from torch import nn

from dist_checks.axes import Axis
from dist_checks.recipes.base import Batch, Recipe
from dist_checks.rung import Rung
from dist_checks.worker.axes import cp
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World


def plant(rung: Rung) -> None:
    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        return model

    def part(batch: Batch, world: World) -> Batch:
        return batch

    cp.apply = apply
    cp.part = part


FAULT = Fault(
    id="cp_off",
    title="every rank of cp computes the whole sequence",
    source="a wrapper that finds nothing to wrap",
    axes=((Axis.CP,),),
    check="engaged",
    plant=plant,
)
