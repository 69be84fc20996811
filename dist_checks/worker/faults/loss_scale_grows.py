"""DeepSpeed divides gradients by the loss scale of the next step: where that has grown, the step is half as long."""

from __future__ import annotations

from typing import Any

from dist_checks.axes import Axis
from dist_checks.recipes.settings import TrainSettings
from dist_checks.rung import Rung
from dist_checks.worker.axes import zero
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World


def plant(rung: Rung) -> None:
    """Only sets the configuration: the bug is DeepSpeed's own, in its steps as long as the scale grows."""
    right = zero.config

    def config(world: World, train: TrainSettings) -> dict[str, Any]:
        made = right(world, train)
        made["fp16"]["loss_scale_window"] = 2
        return made

    zero.config = config


FAULT = Fault(
    id="loss_scale_grows",
    title="the step at which DeepSpeed's loss scale grows is half as long, unless it is clipped",
    source="DeepSpeed 0.19.8: step() updates the scale, then unscales by it (tests/upstream)",
    axes=((Axis.ZERO, Axis.PRECISION),),
    check="grad_norm",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 2, "zero": 1, "precision": "fp16"}, "steps": 3},
    needs=("deepspeed",),
    step=2,
)
