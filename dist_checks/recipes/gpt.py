"""The built-in recipe: a dense GPT over bytes, small enough for a laptop and with every part that an axis can break."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from dist_checks.recipes.base import IGNORE, Attend, Batch, Recipe
from dist_checks.recipes.styles import ReplicatedNorm
from dist_checks.recipes.text import SHORTEST, phrases

VOCABULARY = 256
MLP_RATIO = 4


def rotation(length: int, size: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of rotary embedding, (length, size / 2) each: float64 angles, rounded to float32 once."""
    frequencies = 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
    angles = torch.arange(length, dtype=torch.float64).outer(frequencies)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of ``x``, (..., length, size), in the wider of both types; the result has the type of x."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).type_as(x)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of the tokens of a whole sequence to those before them."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


HELD_OUT = 13
"""Samples that are evaluated: no number of ranks divides it but 13."""


class Attention(nn.Module):
    """Causal self-attention. Under tensor parallelism q, k and v give this rank's heads only."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.attend: Attend = causal
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.o = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        """(batch, length, heads * size) -> (batch, heads, length, size), for as many heads as there are."""
        return x.view(*x.shape[:-1], -1, self.size).transpose(1, 2)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = rotate(self.split(self.q(x)), cos, sin), rotate(self.split(self.k(x)), cos, sin), self.v(x)
        mixed = self.attend(q, k, self.split(v))
        return cast(Tensor, self.o(mixed.transpose(1, 2).flatten(2)))


class MLP(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, MLP_RATIO * width)
        self.down = nn.Linear(MLP_RATIO * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down(F.gelu(self.up(x))))


class Block(nn.Module):
    """Pre-norm residual block on the residual stream, (batch, length, width)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = MLP(width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.drop(self.attention(self.norm1(x), cos, sin))
        return cast(Tensor, x + self.drop(self.mlp(self.norm2(x))))


class GPT(nn.Module):
    """(batch, length) int64 tokens, of which the first is at ``start`` -> (batch, length, VOCABULARY) logits."""

    cos: Tensor
    sin: Tensor

    def __init__(self, *, layers: int, width: int, heads: int, length: int, tied: bool, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.start = 0
        cos, sin = rotation(length, width // heads)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        self.initialise(self)
        if tied:
            self.head.weight = self.embedding.weight

    @staticmethod
    def initialise(part: nn.Module) -> None:
        """Draws the matrices of ``part`` from torch's global random state."""
        for module in part.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = slice(self.start, self.start + tokens.shape[1])
        cos, sin = self.cos[positions], self.sin[positions]
        x = self.drop(self.embedding(tokens))
        for block in self.blocks:
            x = block(x, cos, sin)
        return cast(Tensor, self.head(self.norm(x)))


class GPTStage(nn.Module):
    """A part of a GPT: tokens -> residual stream -> residual stream -> logits, as far as the stage reaches."""

    cos: Tensor
    sin: Tensor

    def __init__(self, model: GPT, blocks: range, *, first: bool, last: bool) -> None:
        super().__init__()
        self.embedding = model.embedding if first else None
        self.drop = model.drop if first else None
        self.blocks = nn.ModuleDict({str(index): model.blocks[index] for index in blocks})
        self.norm = model.norm if last else None
        self.head = model.head if last else None
        self.register_buffer("cos", model.cos)
        self.register_buffer("sin", model.sin)

    def forward(self, x: Tensor) -> Tensor:
        """Rotary embedding is that of whole samples, which a batch's inputs always have."""
        if self.embedding is not None and self.drop is not None:
            x = self.drop(self.embedding(x))
        for block in self.blocks.values():
            x = block(x, self.cos, self.sin)
        return x if self.norm is None or self.head is None else cast(Tensor, self.head(self.norm(x)))


def blocks_of(blocks: int, index: int, count: int) -> range:
    """Those of ``blocks`` that stage ``index`` of ``count`` has; see :meth:`GPTRecipe.stage`."""
    alone = max(0, count - blocks)  # the head, then the embedding
    place = index - (alone > 1)
    cutting = count - alone
    start, stop = (min(max(blocks * at // cutting, 0), blocks) for at in (place, place + 1))
    return range(start, stop)


class GPTRecipe(Recipe):
    """Next byte of a phrase of Python's manual. Sample ``i`` is phrase i; 7 to ``length`` targets each, or ``length``
    in all where they are not ``ragged``: then a mean of means is no mistake."""

    name = "gpt"
    classes = VOCABULARY
    masks_alike: tuple[str, ...] = ("tp",)
    """Only the residual stream is masked, and that is whole on every rank."""
    next_token = True
    spares_norms = True
    pad = 0

    def __init__(
        self,
        *,
        samples: int = 150,
        ragged: bool = True,
        tied: bool = True,
        dropout: float = 0.0,
        layers: int = 4,
        width: int = 32,
        heads: int = 4,
        length: int = 32,
    ) -> None:
        if min(samples, layers, heads) < 1 or length < 8:
            raise ValueError("options.samples, layers and heads must be at least 1, options.length at least 8")
        if width < 1 or width % (2 * heads):
            raise ValueError(f"twice options.heads ({heads}) must divide options.width ({width}): rotary needs pairs")
        if not 0 <= dropout < 1:
            raise ValueError(f"options.dropout ({dropout}) must be at least 0 and below 1")
        self.samples, self.tied, self.dropout = samples, tied, dropout
        self.layers, self.width, self.heads, self.length = layers, width, heads, length
        # One byte more than the model reads: each input's target is the byte after it.
        self.phrases = phrases(samples, length + 1, SHORTEST if ragged else length + 1, more=HELD_OUT)
        self.held_out = len(self.phrases) - samples

    def model(self) -> GPT:
        return GPT(
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            length=self.length,
            tied=self.tied,
            dropout=self.dropout,
        )

    def collate(self, ids: Sequence[int]) -> Batch:
        """Shorter phrases are padded at the end, where causal attention lets nobody see it."""
        inputs = torch.zeros(len(ids), self.length, dtype=torch.int64)
        targets = torch.full_like(inputs, IGNORE)
        for row, index in enumerate(ids):
            text = torch.tensor(list(self.phrases[index]))
            inputs[row, : len(text) - 1] = text[:-1]
            targets[row, : len(text) - 1] = text[1:]
        return Batch(inputs, targets)

    def loss(self, output: Tensor, batch: Batch) -> tuple[Tensor, int]:
        # At least float32, whatever autocast made of the logits.
        logits = output.to(torch.promote_types(output.dtype, torch.float32)).flatten(0, 1)
        loss_sum = F.cross_entropy(logits, batch.targets.flatten(), ignore_index=IGNORE, reduction="sum")
        return loss_sum, batch.count

    def blocks(self, model: nn.Module) -> dict[str, nn.Module]:
        assert isinstance(model, GPT | GPTStage)
        return {f"blocks.{index}": block for index, block in model.blocks.named_children()}

    @property
    def most_stages(self) -> int:
        """Embedding, each block, and the last norm with the head may have a stage of their own."""
        return self.layers + 2

    def stage(self, model: nn.Module, index: int, count: int) -> GPTStage:
        """The first stage has the embedding, the last one norm and head; blocks are spread evenly over all stages, or,
        where there are fewer blocks than stages, as many other parts get a stage of their own."""
        assert isinstance(model, GPT)
        return GPTStage(model, blocks_of(self.layers, index, count), first=index == 0, last=index == count - 1)

    def tensor_parallel_plan(self, *, sequence_parallel: bool) -> dict[str, ParallelStyle]:
        """The residual stream is a plain tensor: whole on every rank, or with ``sequence_parallel`` one part of the
        sequence (dim 1). The logits stay a DTensor sharded over the vocabulary, for loss_parallel."""
        stream = Shard(1) if sequence_parallel else Replicate()

        def norm() -> ParallelStyle:
            return SequenceParallel(use_local_output=True) if sequence_parallel else ReplicatedNorm()

        plan: dict[str, ParallelStyle] = {
            "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=stream),
            "norm": norm(),
            "head": ColwiseParallel(input_layouts=stream, output_layouts=Shard(-1), use_local_output=False),
        }
        for index in range(self.layers):
            block = {
                "norm1": norm(),
                # One conversion for q, k and v together: one collective instead of three.
                "attention": PrepareModuleInput(
                    input_layouts=(stream, None, None), desired_input_layouts=(Replicate(), None, None)
                ),
                "attention.q": ColwiseParallel(),
                "attention.k": ColwiseParallel(),
                "attention.v": ColwiseParallel(),
                "attention.o": RowwiseParallel(output_layouts=stream),
                "norm2": norm(),
                "mlp.up": ColwiseParallel(input_layouts=stream),
                "mlp.down": RowwiseParallel(output_layouts=stream),
            }
            plan |= {f"blocks.{index}.{name}": style for name, style in block.items()}
        return plan

    def split_sequence(self, model: nn.Module, start: int, attend: Attend) -> None:
        assert isinstance(model, GPT)
        model.start = start
        for module in model.modules():
            if isinstance(module, Attention):
                module.attend = attend

    def divisors(self) -> dict[str, dict[str, int]]:
        return {
            "tp": {"heads": self.heads, "MLP width": MLP_RATIO * self.width, "vocabulary": VOCABULARY},
            "sp": {"sequence length": self.length},
            "cp": {"sequence length": self.length},
        }

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token != IGNORE).decode(errors="replace").rstrip("\0")
