"""From step 2 on one weight is put back after each step, as by a copy that is loaded again."""

from __future__ import annotations

import torch
from torch import Tensor

from dist_checks.axes import Axis
from dist_checks.recipes.base import local
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer

TENSOR = "blocks.1.mlp.up.weight"
FROM = 2


def plant(rung: Rung) -> None:
    right = Trainer.update
    steps = 0

    def update(self: Trainer) -> bool:
        nonlocal steps
        held = [local(p.detach()) for name, p in self.model.named_parameters() if name == TENSOR and steps >= FROM]
        before: list[Tensor] = [weight.clone() for weight in held]
        skipped = right(self)
        steps += 1
        with torch.no_grad():
            for weight, old in zip(held, before, strict=True):
                weight.copy_(old)
        return skipped

    if rung.setting.degree(Axis.DP_SHARD) > 1:
        Trainer.update = update  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="weight_frozen",
    title="one weight that does not move any more from step 2 on",
    source="huggingface/accelerate#3256 has all of them frozen from the beginning",
    axes=((Axis.DP_SHARD,),),
    check="updates",
    plant=plant,
    planted_in={"axes": {"dp_shard": 3, "accum": 5}, "steps": 4, "combine": {"mode": "singles"}},
    step=FROM,
)
