"""O27: the gradients of experts are divided by the replicas that an expert has, not by all data ranks."""

from __future__ import annotations

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.axes import ep
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    ep.summed = lambda world: 1


FAULT = Fault(
    id="O27",
    title="expert gradients too large by ep: divided by the replicas of an expert only",
    source="deepspeedai/DeepSpeed#5618, PR#6546, PR#5259",
    axes=((Axis.EP,),),
    check="gradients",
    plant=plant,
    planted_in={"recipe": "moe", "axes": {"ep": 2, "dp_replicate": 3}, "combine": {"mode": "singles"}},
    step=0,
)
