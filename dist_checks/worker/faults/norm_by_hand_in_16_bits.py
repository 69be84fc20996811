"""A norm written by hand computes mean and variance in the type of its input, which was cast to 16 bits."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def forward(self: nn.LayerNorm, x: Tensor) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))
        mean = x.mean(-1, keepdim=True)
        variance = (x - mean).square().mean(-1, keepdim=True)
        return (x - mean) * torch.rsqrt(variance + self.eps) * self.weight + self.bias

    nn.LayerNorm.forward = forward  # type: ignore[method-assign,assignment]  # that is what planting means


FAULT = Fault(
    id="norm_by_hand_in_16_bits",
    title="norm statistics in 16 bits",
    source="x.to(dtype) in front of a norm that is not on the list of autocast",
    axes=((Axis.PRECISION,),),
    check="fp32_islands",
    leads_to={"narrow_islands": "manual"},
    plant=plant,
    planted_in={"axes": {"precision": ["bf16"], "accum": [2]}, "combine": {"mode": "singles"}},
)
