"""A gradient that is 1.05 x what it should be, in one tensor of every rung with several ranks."""

from __future__ import annotations

import torch

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer

TENSORS = (
    *("blocks.1.mlp.up.weight", "blocks.1.moe.experts.up"),
    *("layers.1.mlp.up_proj.weight", "layers.1.mlp.experts.gate_up_proj"),
)
"""Of gpt, of the recipe with experts, and of models of transformers without and with them."""
FACTOR = 1.05


def plant(rung: Rung) -> None:
    right = Trainer.reduce

    def reduce(self: Trainer) -> None:
        right(self)
        for name, parameter in self.model.named_parameters():
            if name.endswith(TENSORS) and parameter.grad is not None:
                with torch.no_grad():
                    parameter.grad.mul_(FACTOR)

    if rung.layout.world_size > 1:
        Trainer.reduce = reduce  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="gradient_scaled",
    title="one gradient 5 % too large",
    source="a wrong divisor in one layer",
    axes=((Axis.DP_REPLICATE,), (Axis.DP_SHARD,), (Axis.EP,), (Axis.TP,)),
    check="gradients",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "dp_shard": 3, "tp": 2, "accum": 5}, "combine": {"mode": "singles"}},
    step=0,
)
