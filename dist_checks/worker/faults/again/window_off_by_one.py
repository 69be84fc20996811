"""O12 again: a wrapper around DDP counts micro-batches by itself and lets the first of each window be reduced."""

from __future__ import annotations

from typing import Any

from torch.nn.parallel import DistributedDataParallel

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right: Any = DistributedDataParallel.forward
    window, calls = rung.setting.degree(Axis.ACCUM), 0

    def forward(self: DistributedDataParallel, *inputs: Any, **named: Any) -> Any:
        nonlocal calls
        self.require_backward_grad_sync = calls % window == 0
        calls += 1
        return right(self, *inputs, **named)

    if window > 1:
        DistributedDataParallel.forward = forward  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O12-2",
    title="a window of accumulation that is reduced at its first micro-batch",
    source="modelscope/FunASR PR#3472",
    axes=((Axis.ACCUM, Axis.DP_REPLICATE),),
    check="replicas",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "accum": 5}},
    step=0,
)
