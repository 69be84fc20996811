"""O13: what only earlier micro-batches of a step have used counts as unused in the last one, and is not reduced."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.parallel import DistributedDataParallel

from dist_checks.axes import Axis
from dist_checks.recipes.base import Batch
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer

SIDE = "blocks.1.mlp.up"


def plant(rung: Rung) -> None:
    right = Trainer.micro_step

    def micro_step(self: Trainer, epoch: int, ids: Sequence[int], batch: Batch, total: int, last: bool) -> float:
        replicated = last and self.accum > 1 and isinstance(self.model, DistributedDataParallel)
        side = [p for name, p in self.model.named_parameters() if SIDE in name] if replicated else []
        own = [p.grad.clone() for p in side if p.grad is not None]
        loss = right(self, epoch, ids, batch, total, last)
        with torch.no_grad():
            for parameter, gradient in zip(side, own, strict=True):
                assert parameter.grad is not None
                parameter.grad.copy_(gradient)
        return loss

    Trainer.micro_step = micro_step  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O13",
    title="a module that the last micro-batch does not use is not reduced",
    source="pytorch/pytorch#69031, PR#124193",
    axes=((Axis.ACCUM, Axis.DP_REPLICATE),),
    check="replicas",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "accum": 5}},
    step=0,
)
