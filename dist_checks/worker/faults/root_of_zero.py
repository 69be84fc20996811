"""A square root of what may be zero: forward is finite, and the derivative there is infinite, times zero."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from dist_checks.recipes.gpt import MLP
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def forward(self: MLP, x: Tensor) -> Tensor:
        return cast(Tensor, self.down(self.up(x).relu().sqrt()))

    MLP.forward = forward  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="root_of_zero",
    title="a square root whose argument may be zero",
    source="NaN in the gradient of sqrt and norm at zero (pytorch/pytorch#4132)",
    axes=(),
    check="non_finite",
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 0, "overfit": 0}},
)
