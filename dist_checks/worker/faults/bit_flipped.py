"""The lowest bit of one weight of one replica flips, once."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer

TENSOR = "blocks.1.norm2.weight"
WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def plant(rung: Rung) -> None:
    right = Trainer.update
    steps = 0

    def update(self: Trainer) -> bool:
        nonlocal steps
        skipped = right(self)
        steps += 1
        if steps == 2 and self.world.rank == self.world.layout.world_size - 1:
            for name, parameter in self.model.named_parameters():
                if name.endswith(TENSOR):
                    flip(parameter)
        return skipped

    if rung.layout.world_size > 1:
        Trainer.update = update  # type: ignore[method-assign]  # that is what planting means


@torch.no_grad()
def flip(parameter: torch.Tensor) -> None:
    values = parameter.to_local() if isinstance(parameter, DTensor) else parameter.detach()
    if values.numel():
        values.view(-1)[:1].view(WORDS[values.element_size()]).bitwise_xor_(1)


FAULT = Fault(
    id="bit_flipped",
    title="one bit of one weight differs on the last rank from step 1 on",
    source="a host with a memory fault; a race in a copy",
    axes=((Axis.DP_REPLICATE,), (Axis.TP,)),
    check="replicas",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "tp": 2, "accum": 5}, "combine": {"mode": "singles"}},
    step=1,
)
