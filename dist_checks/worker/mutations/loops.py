"""Replaces methods of whichever loop trains a rung: frameworks have loops of their own, over the plain one's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dist_checks.worker import trainers
from dist_checks.worker.loop import Trainer
from dist_checks.worker.mesh import World

Method = Callable[..., Any]


def replace(**methods: Callable[[Method], Method]) -> None:
    """On this rank, from now on: each named method is what its function makes of the right one, which takes the loop
    first. What is replaced later is around what was replaced before."""
    right = trainers.choose

    def choose(world: World) -> type[Trainer]:
        base = right(world)
        own = {name: make(getattr(base, name)) for name, make in methods.items()}
        return type(base.__name__, (base,), own)

    trainers.choose = choose
