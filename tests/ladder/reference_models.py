"""Models to compare: what stands for the trusted implementation, and another one with other names."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dist_checks.recipes.gpt import GPT, GPTRecipe


def gpt() -> GPT:
    torch.manual_seed(0)
    return GPTRecipe(layers=2, width=16, heads=2).model()


class Renamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = gpt()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(tokens)  # type: ignore[no-any-return]
