"""The built-in mixture of experts: gpt with its MLPs, from the second layer on, replaced by experts behind a router."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ParallelStyle, PrepareModuleInputOutput

from dist_checks.recipes.base import Batch, local
from dist_checks.recipes.gpt import GPT, MLP_RATIO, Attention, GPTRecipe
from dist_checks.recipes.styles import ReplicatedParameters

CHOSEN = 2
"""Experts that each token goes to."""
NOWHERE = -1
"""The expert of a position that holds no token."""


class Router(nn.Module):
    """Softmax over experts, at least in float32 whatever autocast says: the two most probable ones get the token."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, width).normal_(std=0.02))

    def forward(self, x: Tensor, real: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """``x`` (batch, length, width), ``real`` (batch, length) where there is a token. Returns the weights of the
        chosen experts, which add up to 1, and their numbers, NOWHERE without a token: (batch, length, CHOSEN) each; and
        the balance of each sample, (batch,): experts x sum over them of share of choices x mean probability, 1 where
        all are chosen alike (Switch Transformer, arXiv:2101.03961, equation 4; over one sequence as in DeepSeek-V3)."""
        wide = torch.promote_types(x.dtype, torch.float32)
        with torch.autocast(x.device.type, enabled=False):
            probability = F.linear(x.to(wide), local(self.weight).to(wide)).softmax(-1)
        weights, chosen = probability.topk(CHOSEN, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        experts, there = probability.shape[-1], real.unsqueeze(-1).to(wide)
        tokens = there.sum(1)
        share = (F.one_hot(chosen, experts).sum(2) * there).sum(1) / (CHOSEN * tokens)
        mean = (probability * there).sum(1) / tokens
        balance = experts * (share * mean).sum(-1)
        return weights, chosen.masked_fill(~real.unsqueeze(-1), NOWHERE), balance


class Experts(nn.Module):
    """An MLP for each expert, stacked along dim 0: those of this rank only where the ranks of ep share them."""

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(experts, hidden, width).normal_(std=0.02))
        self.down = nn.Parameter(torch.empty(experts, width, hidden).normal_(std=0.02))

    def forward(self, tokens: Tensor, counts: Tensor) -> Tensor:
        """``tokens`` (n, width) in the order of their experts, ``counts`` (experts,) how many each has; (n, width)."""
        pieces = torch.split(tokens, counts.tolist())
        matrices = zip(pieces, local(self.up), local(self.down), strict=True)
        return torch.cat([F.linear(F.gelu(F.linear(piece, up)), down) for piece, up, down in matrices])


class MoE(nn.Module):
    """Every token goes to its experts and back; none is dropped, however many want the same expert."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = Router(width, experts)
        self.experts = Experts(width, MLP_RATIO * width // CHOSEN, experts)
        self.count = experts

    def forward(self, x: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, length, width), zero where there is no token, and the balance of each sample, (batch,)."""
        weights, chosen, balance = self.router(x, real)
        picked = chosen[real].flatten()
        order = picked.argsort(stable=True)
        # Copied before they are sorted: then no gradient is added up in an order that depends on the device.
        copies = x[real].unsqueeze(1).expand(-1, CHOSEN, -1).flatten(0, 1)
        out = self.experts(copies[order], picked.bincount(minlength=self.count))
        mixed = (out[order.argsort()].unflatten(0, (-1, CHOSEN)) * weights[real].unsqueeze(-1)).sum(1)
        return torch.zeros_like(x).index_put((real,), mixed.type_as(x)), balance


class MoEBlock(nn.Module):
    """Pre-norm residual block, as gpt's, with experts for the MLP."""

    def __init__(self, width: int, heads: int, experts: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.moe = MoE(width, experts)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.attention(self.norm1(x), cos, sin)
        y, balance = self.moe(self.norm2(x), real)
        return x + y, balance


class MoEGPT(GPT):
    """(batch, length) int64 tokens -> (batch, length, VOCABULARY) logits, and the mean balance of each sample's layers,
    (batch,)."""

    def __init__(self, *, layers: int, width: int, heads: int, length: int, tied: bool, experts: int) -> None:
        super().__init__(layers=1, width=width, heads=heads, length=length, tied=tied, dropout=0.0)
        for _ in range(1, layers):
            block = MoEBlock(width, heads, experts)
            self.initialise(block)
            self.blocks.append(block)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # the balance comes along
        length = tokens.shape[1]
        cos, sin, real = self.cos[:length], self.sin[:length], tokens != 0
        dense, *sparse = self.blocks
        x = dense(self.embedding(tokens), cos, sin)
        balances = []
        for block in sparse:
            x, balance = block(x, cos, sin, real)
            balances.append(balance)
        return self.head(self.norm(x)), torch.stack(balances).mean(0)


class MoERecipe(GPTRecipe):
    """gpt's phrases. The first layer is dense, each further one has ``experts`` of half an MLP's width.

    The loss is additive: ``balance`` x the balance of a sample x its number of targets is added to the sum over its
    targets, so a sample adds the same wherever it is computed. (A balance over a whole batch is another thing on one
    data rank and on two, rightly: its gradient differs by 16 %.)
    """

    name = "moe"
    most_stages = 1
    """The balance of each sample and where its tokens are do not travel from stage to stage."""

    def __init__(
        self,
        *,
        samples: int = 150,
        ragged: bool = True,
        tied: bool = True,
        layers: int = 2,
        width: int = 32,
        heads: int = 4,
        length: int = 32,
        experts: int = 4,
        balance: float = 0.01,
    ) -> None:
        super().__init__(
            samples=samples, ragged=ragged, tied=tied, layers=layers, width=width, heads=heads, length=length
        )
        if layers < 2:
            raise ValueError(f"options.layers ({layers}) must be at least 2: the first layer has no experts")
        if experts <= CHOSEN:
            raise ValueError(f"options.experts ({experts}) must be more than the {CHOSEN} that a token goes to")
        if not balance >= 0:
            raise ValueError(f"options.balance ({balance}) must be at least 0")
        self.count, self.balance = experts, balance

    def model(self) -> MoEGPT:
        return MoEGPT(
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            length=self.length,
            tied=self.tied,
            experts=self.count,
        )

    def loss(self, output: Any, batch: Batch) -> tuple[Tensor, int]:
        logits, balance = output
        loss_sum, targets = super().loss(logits, batch)
        if isinstance(loss_sum, DTensor):
            loss_sum = loss_sum.full_tensor()
        return loss_sum + self.balance_sum(balance, batch), targets

    def terms(self, output: Any, batch: Batch) -> dict[str, Tensor]:
        return {"balance": self.balance_sum(output[1], batch)} if self.balance else {}

    def balance_sum(self, balance: Tensor, batch: Batch) -> Tensor:
        """The balance term of a batch, a scalar: that of each sample times its number of targets."""
        return self.balance * (balance * batch.counts).sum()

    def experts(self, model: nn.Module) -> dict[str, nn.Module]:
        assert isinstance(model, MoEGPT)
        return {f"blocks.{index}.moe.experts": block.moe.experts for index, block in _sparse(model)}

    def routers(self, model: nn.Module) -> dict[str, nn.Module]:
        assert isinstance(model, MoEGPT)
        return {f"blocks.{index}.moe.router": block.moe.router for index, block in _sparse(model)}

    def tensor_parallel_plan(self, *, sequence_parallel: bool) -> dict[str, ParallelStyle]:
        """Routers and experts are whole on every rank of tp, which computes them for all tokens of its samples."""
        plan = super().tensor_parallel_plan(sequence_parallel=sequence_parallel)
        for index in range(1, self.layers):
            del plan[f"blocks.{index}.mlp.up"], plan[f"blocks.{index}.mlp.down"]
            plan[f"blocks.{index}.moe.router"] = plan[f"blocks.{index}.moe.experts"] = ReplicatedParameters()
            if sequence_parallel:
                plan[f"blocks.{index}.moe"] = PrepareModuleInputOutput(
                    input_layouts=(Shard(1), None),
                    desired_input_layouts=(Replicate(), None),
                    output_layouts=(Replicate(), None),
                    desired_output_layouts=(Shard(1), None),  # type: ignore[arg-type]  # None leaves the balance
                    use_local_input=True,
                )
        return plan

    def divisors(self) -> dict[str, dict[str, int]]:
        return {**super().divisors(), "ep": {"experts": self.count}}

    def lacking(self) -> dict[str, str]:
        return {
            **super().lacking(),
            "cp": "needs a recipe whose loss is one over tokens; moe balances whole sequences",
            "compile": "needs shapes that do not depend on data; moe gives an expert as many tokens as have chosen it",
        }


def _sparse(model: MoEGPT) -> list[tuple[int, MoEBlock]]:
    return [(index, cast(MoEBlock, block)) for index, block in enumerate(model.blocks) if index]
