"""Each block lets a thousand times its gradient through."""

from __future__ import annotations

from torch import Tensor

from dist_checks.recipes.gpt import Block
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = Block.forward

    def forward(self: Block, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return right(self, 1e3 * x - 999.0 * x.detach(), cos, sin)

    Block.forward = forward  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="gradient_grows",
    title="exploding gradients",
    source="an initialisation that is too wide for the depth, with no norm to hold it",
    axes=(),
    check="gradient_flow",
    leads_to={"gradient_explodes": "init"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 0, "overfit": 0}},
)
