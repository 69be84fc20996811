"""The MLPs of the blocks have a tanh, and inputs that push it to its ends."""

from __future__ import annotations

from typing import cast

from torch import Tensor

from dist_checks.recipes.gpt import MLP
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def forward(self: MLP, x: Tensor) -> Tensor:
        return cast(Tensor, self.down((1000 * self.up(x)).tanh()))

    MLP.forward = forward  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="tanh_saturated",
    title="activations at the end of their range",
    source="inputs that are multiplied where they should be divided by the square root of their width",
    axes=(),
    check="activations",
    leads_to={"saturated": "scale"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 2, "overfit": 0}},
)
