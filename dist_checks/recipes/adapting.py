"""A recipe of the user's own that inherits nothing: what it needs, and how it is made one."""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Sequence
from typing import Any, Protocol, cast

from torch import Tensor, nn

from dist_checks.recipes.base import Batch, Recipe

METHODS = ("model", "collate", "loss")
NUMBERS = ("samples", "classes")


class Trainable(Protocol):
    """The least that a recipe is. Whatever else :class:`~dist_checks.recipes.base.Recipe` has may be there as well."""

    samples: int
    """Of an epoch; their ids are 0 to samples - 1."""
    classes: int
    """That the loss chooses from."""

    def model(self) -> nn.Module:
        """A new one on the CPU, from torch's global random state. Inputs that are floats it casts to its weights'."""
        ...

    def collate(self, ids: Sequence[int]) -> Batch | tuple[Tensor, Tensor]:
        """(inputs, targets) of the samples with these ids, each with a row for each sample; or a Batch of them."""
        ...

    def loss(self, output: Any, batch: Batch) -> Tensor | tuple[Tensor, int]:
        """The sum over targets; with their number, where that is not how many are not IGNORE."""
        ...


def adapted(found: Any) -> type[Recipe]:
    """``found``, as a class of recipes. ValueError that says what it lacks."""
    if issubclass(found, Recipe):
        recipe: type[Recipe] = found
        return recipe
    lacking = [name for name in METHODS if not callable(getattr(found, name, None))]
    if lacking:
        raise ValueError(f"a recipe needs the methods {', '.join(METHODS)}; {found.__name__} has no {lacking[0]}")

    def collate(self: Any, ids: Sequence[int]) -> Batch:
        made = found.collate(self, ids)
        return made if isinstance(made, Batch) else Batch(*made)

    def loss(self: Any, output: Any, batch: Batch) -> tuple[Tensor, int]:
        said = found.loss(self, output, batch)
        return (said, batch.count) if isinstance(said, Tensor) else said

    own = {"collate": collate, "loss": loss, "name": getattr(found, "name", found.__name__)}
    made: Any = ABCMeta(found.__name__, (found, Recipe), own)
    return cast("type[Recipe]", made)


def check(recipe: Recipe) -> Recipe:
    """ValueError where a number is missing that the constructor could have set."""
    for name in NUMBERS:
        if not isinstance(getattr(recipe, name, None), int):
            raise ValueError(f"a recipe needs {' and '.join(NUMBERS)}, whole numbers; {recipe.name} has no {name}")
    return recipe
