"""A recipe whose model is trained already: fine-tuning begins there. ``lost``: the weights are not loaded."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from dist_checks.recipes.mlp import MLPRecipe


@functools.cache
def trained() -> dict[str, Any]:
    """What stands for a checkpoint."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        recipe = MLPRecipe()
        model = recipe.model()
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        batch = recipe.collate(range(recipe.samples))
        for _ in range(60):
            optimizer.zero_grad()
            loss_sum, count = recipe.loss(model(batch.inputs), batch)
            torch.autograd.backward(loss_sum / count)
            optimizer.step()
        return model.state_dict()


class Loaded(MLPRecipe):
    name = "loaded"
    starts_trained = True

    def __init__(self, *, lost: bool = False) -> None:
        super().__init__()
        self.lost = lost

    def model(self) -> nn.Module:
        model = super().model()
        if not self.lost:
            model.load_state_dict(trained())
        return model
