"""O31: the model itself is in bfloat16, and no float32 copy of it is kept: small updates vanish in rounding."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from torch import nn

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker.axes import precision
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World


def plant(rung: Rung) -> None:
    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        return model.bfloat16()

    def autocast(world: World) -> AbstractContextManager[object]:
        return nullcontext()

    if rung.precision == "bf16":
        precision.apply, precision.autocast = apply, autocast


FAULT = Fault(
    id="O31",
    title="bfloat16 parameters without a float32 copy: updates vanish",
    source="workofart/ml-by-hand PR#85",
    axes=((Axis.PRECISION,),),
    check="updates",
    plant=plant,
    planted_in={
        "axes": {"precision": "bf16", "dp_replicate": 3},
        "train": {"learning_rate": 1e-5},
    },
    step=0,
)
