"""O14: each pass through the schedule divides whatever gradients there are by the number of micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dist_checks.axes import Axis
from dist_checks.recipes.base import Batch, local
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    if rung.setting.degree(Axis.PP) == 1:
        return
    from dist_checks.worker.pipelining import PipelineTrainer

    right = PipelineTrainer.run_schedule

    def run_schedule(self: PipelineTrainer, epoch: int, ids: Sequence[int], batch: Batch) -> float:
        # With losses that are means, the division is right for the pass that makes them. What earlier passes have
        # left is divided again.
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    local(parameter.grad).div_(self.micro_batches)
        return right(self, epoch, ids, batch)

    PipelineTrainer.run_schedule = run_schedule  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O14",
    title="the schedule divides gradients that were accumulated before once more",
    source="pytorch/torchtitan#1733, PR#1732",
    axes=((Axis.ACCUM, Axis.PP),),
    check="contributions",
    plant=plant,
    planted_in={"axes": {"pp": 2, "accum": 5}},
    step=0,
)
