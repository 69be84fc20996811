"""The MLPs are cut out of the graph: they have no gradient, and never learn."""

from __future__ import annotations

from torch import Tensor

from dist_checks.recipes.gpt import MLP
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = MLP.forward

    def forward(self: MLP, x: Tensor) -> Tensor:
        return right(self, x).detach()

    MLP.forward = forward  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="branch_detached",
    title="a detached branch",
    source="a .detach() or no_grad() left over from debugging",
    axes=(),
    check="grads_reach",
    leads_to={"gradient_missing": "detached"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 0, "overfit": 0}},
)
