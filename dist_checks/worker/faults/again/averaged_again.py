"""O10 again: the loop takes the mean over replicas itself, of gradients that DDP has averaged already."""

from __future__ import annotations

import torch

from dist_checks.axes import Axis
from dist_checks.recipes.base import local
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    right = Trainer.reduce

    def reduce(self: Trainer) -> None:
        right(self)
        with torch.no_grad():
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    local(parameter.grad).div_(self.data_size)

    if rung.layout.data_size > 1:
        Trainer.reduce = reduce  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O10-2",
    title="gradients averaged over replicas a second time: 1/N of them",
    source="huggingface/transformers#37474",
    axes=((Axis.DP_REPLICATE,), (Axis.DP_SHARD,)),
    check="contributions",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "dp_shard": 2, "ckpt_act": True}, "combine": {"mode": "singles"}},
    step=0,
)
