"""How each axis is applied to a model: one file an axis, in the order in which they must be applied."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from dist_checks.axes import SPEC, Axis
from dist_checks.recipes.base import Recipe
from dist_checks.worker.axes import (
    accum,
    ckpt_act,
    compile,
    cp,
    dp_replicate,
    dp_shard,
    ep,
    fused,
    pp,
    precision,
    resume,
    sp,
    tp,
    zero,
)
from dist_checks.worker.mesh import World


class AxisModule(Protocol):
    """What the module of an axis offers."""

    def apply(self, model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        """On every rank: the model with this axis applied, changed in place or wrapped; as it was if the axis is off.

        Raises ValueError with the rule that a combination breaks.
        """
        ...


# Numbers first, then what cuts tensors inside a layer, then what runs a layer again, then what deals layers out, then
# what cuts or copies whole layers. sp before tp, which applies the plan of both; ep after tp, which has given the
# experts a mesh. cp wraps nothing: dp_shard and dp_replicate reduce over its ranks as well.
ORDER: tuple[AxisModule, ...] = (
    *(precision, fused, sp, cp, tp, ep),
    *(compile, ckpt_act, pp, dp_shard, dp_replicate, zero, accum, resume),
)


def apply_all(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    """On every rank: ``model`` on the rank's device, with every axis of the rung applied."""
    model = model.to(world.device)
    for module in ORDER:
        axis = _axis(module)
        if axis in recipe.own_axes and axis in world.rung.setting:
            mesh = world.submesh(Axis(axis)) if SPEC[Axis(axis)].devices else None
            model = recipe.apply(axis, model, mesh)
        else:
            model = module.apply(model, recipe, world)
    return model


def _axis(module: AxisModule) -> str:
    """What a file of this folder is called after."""
    return str(getattr(module, "__name__", "")).rpartition(".")[2]
