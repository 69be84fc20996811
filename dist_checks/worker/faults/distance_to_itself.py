"""The root of a sum of squares that is zero: forward is finite, the derivative is infinite times zero, which is NaN."""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from torch import Tensor

from dist_checks.recipes.gpt import MLP
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def forward(self: MLP, x: Tensor) -> Tensor:
        apart = (x - x[:, :1]).square().sum(-1, keepdim=True)
        return cast(Tensor, self.down(F.gelu(self.up(x))) * (1 + 0.01 * apart.sqrt()))

    MLP.forward = forward  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="distance_to_itself",
    title="the distance of the first token to itself, by the root of a sum of squares",
    source="the derivative of a square root at zero, times zero",
    axes=(),
    check="non_finite",
    leads_to={"not_finite": "zero"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 0, "overfit": 0}},
)
