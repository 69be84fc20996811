"""Which tokens of the sequence a rank sees: cp cuts it into parts, sp cuts each part again over the ranks of tp."""

from __future__ import annotations

from dist_checks.axes import Axis
from dist_checks.recipes.base import Batch, Recipe
from dist_checks.worker.mesh import World


def tokens(world: World, batch: Batch) -> tuple[int, int, int] | None:
    """(start, stop, total) of the tokens of ``batch`` that this rank sees in its blocks; None for all of them."""
    if Axis.SP not in world.rung.setting:
        return batch.tokens
    start, stop, total = batch.tokens or (0, batch.inputs.shape[1], batch.inputs.shape[1])
    size = (stop - start) // world.degree(Axis.TP)
    start += world.layout.coordinates(world.rank)[Axis.TP] * size
    return start, start + size, total


def refuse_dropout(recipe: Recipe, axis: Axis) -> None:
    """ValueError where parts of a sequence would have to be masked by random numbers of their own."""
    if recipe.dropout:
        raise ValueError(
            f"{axis} cannot be combined with dropout ({recipe.dropout}): ranks with the same samples share their "
            "random state, so every part of the sequence would be masked alike"
        )
