"""A ZeRO stage below the one that was asked for, down to none; torch's optimizer without partitions."""

from __future__ import annotations

from typing import Any

from dist_checks.axes import Axis
from dist_checks.recipes.settings import TrainSettings
from dist_checks.rung import Rung
from dist_checks.worker.axes import zero
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World


def plant(rung: Rung) -> None:
    right = zero.config

    def config(world: World, train: TrainSettings) -> dict[str, Any]:
        made = right(world, train)
        made["zero_optimization"]["stage"] -= 1
        return made

    zero.config = config
    zero.partitioned = lambda optimizer, world: optimizer


FAULT = Fault(
    id="zero_stage_lowered",
    title="the engine is built with the ZeRO stage below the one that was asked for",
    source="a configuration file that another one overrides: nothing in the numbers tells",
    axes=((Axis.ZERO,),),
    check="engaged",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 2, "zero": [1, "redundancy"], "accum": 5}, "combine": {"mode": "singles"}},
    needs=("deepspeed",),
)
