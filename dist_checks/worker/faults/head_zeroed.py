"""One attention head that contributes nothing, in every rung with several ranks."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker import axes
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World

MODULE = "blocks.1.attention.o"


def plant(rung: Rung) -> None:
    right = axes.apply_all

    def apply_all(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        size = int(getattr(recipe, "width")) // int(getattr(recipe, "heads"))  # noqa: B009 (not on every recipe)

        def silence(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            heads: Tensor = inputs[0].clone()
            heads[..., :size] = 0
            return (heads, *inputs[1:])

        # Before the axes: a head is cut out of what the layer is given on this rank, whatever wraps it later.
        if world.rank == 0:
            model.get_submodule(MODULE).register_forward_pre_hook(silence, prepend=True)
        return right(model, recipe, world)

    if rung.layout.world_size > 1:
        axes.apply_all = apply_all


FAULT = Fault(
    id="head_zeroed",
    title="one attention head is zero on rank 0",
    source="a cut of the heads that misses one",
    axes=((Axis.DP_REPLICATE,), (Axis.DP_SHARD,), (Axis.TP,)),
    check="forward",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "tp": 2, "accum": 5}, "combine": {"mode": "singles"}},
    step=0,
)
