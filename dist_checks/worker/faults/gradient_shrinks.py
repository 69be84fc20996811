"""Each block lets a thousandth of the gradient through."""

from __future__ import annotations

from torch import Tensor

from dist_checks.recipes.gpt import Block
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = Block.forward

    def forward(self: Block, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return right(self, 1e-3 * x + 0.999 * x.detach(), cos, sin)

    Block.forward = forward  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="gradient_shrinks",
    title="vanishing gradients",
    source="saturated activations on the residual path",
    axes=(),
    check="gradient_flow",
    leads_to={"gradient_vanishes": "residual"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 0, "overfit": 0}},
)
