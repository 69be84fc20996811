"""Which tokens of the sequence a rank sees: cp cuts it into parts, sp cuts each part again over the ranks of tp."""

from __future__ import annotations

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.worker.mesh import World


def tokens(world: World, length: int) -> tuple[int, int, int] | None:
    """(start, stop, total) of the tokens that this rank sees in its blocks, where its inputs have ``length`` tokens a
    sample; None where that is the whole sequence."""
    at = world.layout.coordinates(world.rank)
    start, size, total = at[Axis.CP] * length, length, length * world.degree(Axis.CP)
    if Axis.SP in world.rung.setting:
        size = length // world.degree(Axis.TP)
        start += at[Axis.TP] * size
    return None if size == total else (start, start + size, total)


def refuse_dropout(recipe: Recipe, axis: Axis) -> None:
    """ValueError where parts of a sequence would have to be masked by random numbers of their own."""
    if recipe.dropout:
        raise ValueError(
            f"{axis} cannot be combined with dropout ({recipe.dropout}): ranks with the same samples share their "
            "random state, so every part of the sequence would be masked alike"
        )
