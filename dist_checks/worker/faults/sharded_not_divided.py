"""Under pp, tp and DDP the gradients of sharded parameters are not divided by the micro-batches; all others are.

That is what torch computes with ``_pre_dp_module_transform`` (tests/upstream/test_pipelining.py).
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    if any(rung.setting.degree(axis) == 1 for axis in (Axis.PP, Axis.TP, Axis.DP_REPLICATE)):
        return
    from dist_checks.worker.pipelining import PipelineTrainer

    right = PipelineTrainer.reduce

    def reduce(self: PipelineTrainer) -> None:
        right(self)
        with torch.no_grad():
            for parameter in self.parameters():
                if isinstance(parameter.grad, DTensor) and any(cut.is_shard() for cut in parameter.grad.placements):
                    parameter.grad.to_local().mul_(self.micro_batches)

    PipelineTrainer.reduce = reduce  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="pp_tp_ddp",
    title="tensor-parallel gradients too large by the micro-batches of the pipeline",
    source="torch 2.13: pipelining with DDP and _pre_dp_module_transform",
    axes=((Axis.DP_REPLICATE, Axis.PP, Axis.TP),),
    check="gradients",
    step=0,
    planted_in={
        "steps": 1,
        "axes": {"pp": [2], "dp_replicate": [2], "tp": [2]},
        "combine": {"mode": "singles", "include": ["pp2+dp_replicate2+tp2"]},
    },
    plant=plant,
)
