"""Which random state a rank has: the same for every rank while the model is made, then one for each data rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.mesh import World


def seed_model(rung: Rung) -> None:
    """Before the model is made: the same weights on every rank and in every rung."""
    torch.manual_seed(rung.seed)


def seed_rank(world: World, step: int = 0) -> None:
    """Before the first step, or before ``step``, where no other state is known: ranks that compute the same thing (a tp
    group) draw the same masks, others draw others."""
    torch.manual_seed((world.rung.seed << 20) + (step << 12) + 1 + place(world))


def place(world: World) -> int:
    """The number of what a rank computes: ranks of a tp group share it."""
    stage = world.layout.coordinates(world.rank)[Axis.PP]
    return world.data_rank + stage * world.layout.data_size


def state(device: torch.device) -> dict[str, Tensor]:
    """Of the generators that a rank draws from: a copy."""
    states = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        states["device"] = torch.get_device_module(device).get_rng_state(device)
    return states


def restore(states: Mapping[str, Tensor], device: torch.device) -> None:
    """What :func:`state` has returned."""
    torch.set_rng_state(states["cpu"])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states["device"], device)


@contextmanager
def kept(device: torch.device) -> Iterator[None]:
    """What is drawn inside, on the CPU or on ``device``, is drawn again afterwards."""
    states = state(device)
    yield
    restore(states, device)
