"""ckpt_act: what a block computes is thrown away in forward and computed again in backward."""

from __future__ import annotations

from torch import nn
from torch.distributed._composable.checkpoint_activation import checkpoint

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.worker.mesh import World


def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    """Non-reentrant checkpointing of each block, by hooks: no wrapper, so that names stay those of the single.

    Dropout draws the same mask again, because the random state of forward is put back for it.
    """
    if Axis.CKPT_ACT not in world.rung.setting:
        return model
    blocks = recipe.blocks(model)
    if not blocks:
        raise ValueError(f"ckpt_act needs a recipe with blocks; {recipe.name} has none")
    for block in blocks.values():
        wrap(block)
    return model


def wrap(block: nn.Module) -> None:
    checkpoint(block)
