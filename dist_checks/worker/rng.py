"""Which random state a rank has: the same for every rank while the model is made, then one for each data rank."""

from __future__ import annotations

import torch

from dist_checks.rung import Rung
from dist_checks.worker.mesh import World


def seed_model(rung: Rung) -> None:
    """Before the model is made: the same weights on every rank and in every rung."""
    torch.manual_seed(rung.seed)


def seed_rank(world: World) -> None:
    """Before the first step: ranks with the same samples (a tp group) draw the same masks, others draw others."""
    torch.manual_seed((world.rung.seed << 20) + 1 + world.data_rank)
