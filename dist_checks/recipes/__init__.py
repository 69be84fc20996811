"""What is trained: the built-in recipes, and how one of the user's own is found."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from dist_checks.recipes.adapting import adapted, check
from dist_checks.recipes.base import IGNORE, Attend, Batch, Recipe
from dist_checks.recipes.settings import TrainSettings, build_optimizer

BUILT_IN = {
    "gpt": "dist_checks.recipes.gpt:GPTRecipe",
    "moe": "dist_checks.recipes.moe:MoERecipe",
    "huggingface": "dist_checks.recipes.huggingface:CausalLMRecipe",
    "mlp": "dist_checks.recipes.mlp:MLPRecipe",
    "packed": "dist_checks.recipes.packed:PackedRecipe",
    "answers": "dist_checks.recipes.answers:AnswersRecipe",
}

__all__ = ["BUILT_IN", "IGNORE", "Attend", "Batch", "Recipe", "TrainSettings", "build_optimizer", "load"]


def load(name: str, options: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe that the matrix calls ``name``: a built-in one, or ``my_pkg.train:MyRecipe`` of the user.

    Raises ValueError that names the key ``recipe`` or ``options``, the value and what was expected.
    """
    found = _find(name)
    try:
        return check(found(**(options or {})))
    except TypeError as error:
        raise ValueError(f"options {dict(options or {})!r} do not fit recipe {name!r}: {error}") from error


def _find(name: str) -> type[Recipe]:
    where = BUILT_IN.get(name, name)
    module, _, attribute = where.partition(":")
    if not module or not attribute:
        raise ValueError(
            f"recipe takes a built-in name ({', '.join(BUILT_IN)}) or 'package.module:Class', not {name!r}"
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"recipe {name!r} cannot be imported: {error}") from error
    if not isinstance(found, type):
        raise ValueError(f"recipe {name!r} must be a class, not {found!r}")
    try:
        return adapted(found)
    except ValueError as error:
        raise ValueError(f"recipe {name!r}: {error}") from None
