"""O19's sibling under ZeRO 1 and 2: the optimizer steps its partition, and the model keeps the old rest."""

from __future__ import annotations

from typing import Any

from dist_checks.axes import ZERO_STAGES, Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    if rung.setting.get(Axis.ZERO) in ZERO_STAGES:
        from deepspeed.runtime.zero import stage_1_and_2

        stage_1_and_2.all_gather_dp_groups = not_gathered


def not_gathered(*arguments: Any, **named: Any) -> None:
    pass


FAULT = Fault(
    id="partitions_not_gathered",
    title="updated partitions are not gathered: each rank trains with the old weights of the others",
    source="huggingface/accelerate#3256 is the same with stale parameters in the optimizer",
    axes=((Axis.ZERO,),),
    check="replicas",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 2, "zero": 2, "accum": 5}, "combine": {"mode": "singles"}},
    needs=("deepspeed",),
    step=0,
)
