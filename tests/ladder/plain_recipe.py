"""A recipe whose blocks are quickly compiled: norm and MLP, no attention."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn
from torch.distributed.tensor.parallel import ParallelStyle

from dist_checks.recipes.gpt import GPT, MLP, GPTRecipe


class PlainBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.mlp = MLP(width)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return cast(Tensor, x + self.mlp(self.norm1(x)))


class Plain(GPTRecipe):
    name = "plain"

    def model(self) -> GPT:
        model = super().model()
        model.blocks = nn.ModuleList([PlainBlock(self.width) for _ in range(self.layers)])
        return model

    def tensor_parallel_plan(self, *, sequence_parallel: bool) -> dict[str, ParallelStyle]:
        plan = super().tensor_parallel_plan(sequence_parallel=sequence_parallel)
        return {name: style for name, style in plan.items() if "attention" not in name and "norm2" not in name}
