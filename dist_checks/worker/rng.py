"""Which random state a rank has: the same for every rank while the model is made, then one for each data rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.mesh import World


def seed_model(rung: Rung) -> None:
    """Before the model is made: the same weights on every rank and in every rung."""
    torch.manual_seed(rung.seed)


def seed_rank(world: World) -> None:
    """Before the first step: ranks that compute the same thing (a tp group) draw the same masks, others draw others."""
    stage = world.layout.coordinates(world.rank)[Axis.PP]
    torch.manual_seed((world.rung.seed << 20) + 1 + world.data_rank + stage * world.layout.data_size)


@contextmanager
def kept(device: torch.device) -> Iterator[None]:
    """What is drawn inside, on the CPU or on ``device``, is drawn again afterwards."""
    state = torch.get_rng_state()
    module = None if device.type == "cpu" else torch.get_device_module(device)
    device_state = module and module.get_rng_state(device)
    yield
    torch.set_rng_state(state)
    if module is not None:
        module.set_rng_state(device_state, device)
