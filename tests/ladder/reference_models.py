"""A model to compare: what stands for the trusted implementation."""

from __future__ import annotations

import torch

from dist_checks.recipes.gpt import GPT, GPTRecipe


def gpt() -> GPT:
    torch.manual_seed(0)
    return GPTRecipe(layers=2, width=16, heads=2).model()
