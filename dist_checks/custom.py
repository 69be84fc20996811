"""Axes of the user's own: what each sets, and how a rung with one differs from a rung without. No torch here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import ConfigDict, StringConstraints

from dist_checks.axes import CUSTOM_NAME

Text = Annotated[str, StringConstraints(strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Custom:
    """One table ``[custom.NAME]``. What it sets comes on top of what every rung has."""

    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)
    options: dict[str, Any] = field(default_factory=dict)
    """Of the recipe."""
    train: dict[str, Any] = field(default_factory=dict)
    env: dict[str, Text] = field(default_factory=dict)
    """Environment variables; they start the rung in new processes, since many are read at import."""
    same: bool = True
    """Must give the numbers of the rung without it; else it is compared with a single of its own."""


def unusable(tables: Mapping[str, Custom]) -> list[str]:
    """What is wrong with the tables."""
    found = []
    for name, table in tables.items():
        if not re.fullmatch(CUSTOM_NAME, name):
            found.append(f"custom.{name}: a name has letters, digits, '_' and '-' only: rungs are called after it")
        if not (table.options or table.train or table.env):
            found.append(f"custom.{name}: this sets nothing, expected options, train or env")
    return found


def unknown(tables: Mapping[str, Custom], named: tuple[object, ...]) -> list[str]:
    """What is wrong with the names in ``axes.custom``."""
    known = ", ".join(tables) or "none"
    return [
        f"axes.custom[{index}]: there is no table [custom.{name}], expected one of: {known}"
        for index, name in enumerate(named)
        if name not in tables
    ]
