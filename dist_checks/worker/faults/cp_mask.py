"""A causal mask that takes the first query of each rank of cp for the first of the sequence."""

from __future__ import annotations

from torch import Tensor

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.axes import cp
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = cp.before

    def before(start: int, q: Tensor, k: Tensor) -> Tensor:
        return right(0, q, k)

    cp.before = before


FAULT = Fault(
    id="cp_mask",
    title="tokens of later parts see the first part only",
    source="is_causal=True with more keys than queries",
    axes=((Axis.CP,),),
    check="forward",
    plant=plant,
    planted_in={"axes": {"cp": 2, "accum": 5}, "combine": {"mode": "singles"}},
    step=0,
)
