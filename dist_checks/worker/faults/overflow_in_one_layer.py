"""One MLP scales its hidden layer by 2^20 and back: the same bits, but in fp16 infinite."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from dist_checks.axes import Axis
from dist_checks.recipes.gpt import MLP
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:

    def forward(self: MLP, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)) * 2.0**20 / 2.0**20)  # type: ignore[no-any-return]

    MLP.forward = forward  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="overflow_in_one_layer",
    title="fp16 overflow in one layer",
    source="activations above 65504",
    axes=((Axis.PRECISION,),),
    check="non_finite",
    leads_to={"not_finite": "overflow"},
    plant=plant,
    planted_in={"axes": {"precision": ["fp16"], "accum": [2]}, "combine": {"mode": "singles"}},
)
