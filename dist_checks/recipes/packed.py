"""gpt with several phrases packed into each sample: attention and positions begin anew with each of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dist_checks.recipes.base import IGNORE, Batch
from dist_checks.recipes.gpt import GPT, Attention, GPTRecipe

BEGIN, END = 1, 2
"""Bytes that the text does not have."""
PER_SAMPLE = 2


def numbers(tokens: Tensor) -> Tensor:
    """Of each token, the number of its document in its sample, (samples, length); -1 for padding."""
    return ((tokens == BEGIN).cumsum(1) - 1).masked_fill(tokens == 0, -1)


def mask(documents: Tensor) -> Tensor:
    """(samples, 1, length, length), true where a token may look: at its own document, and not ahead. Padding looks at
    padding, as a row without any token would be NaN."""
    same = documents.unsqueeze(2) == documents.unsqueeze(1)
    return same.tril().unsqueeze(1)


def masked(allowed: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


class PackedGPT(GPT):
    def forward(self, tokens: Tensor) -> Tensor:
        documents = numbers(tokens)
        place = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        first = torch.where(documents.diff(dim=1, prepend=documents[:, :1] - 1) != 0, place, 0).cummax(1).values
        cos, sin = (table[place - first].unsqueeze(1) for table in (self.cos, self.sin))
        allowed = mask(documents)
        for module in self.modules():
            if isinstance(module, Attention):
                module.attend = partial(masked, allowed)
        x = self.drop(self.embedding(tokens))
        for block in self.blocks:
            x = block(x, cos, sin)
        return cast(Tensor, self.head(self.norm(x)))


class PackedRecipe(GPTRecipe):
    """Sample ``i`` is phrases 2i and 2i + 1, each between a byte that begins it and one that ends it."""

    name = "packed"
    begin: int | None = None  # there are as many as documents
    most_stages = 1

    def __init__(
        self,
        *,
        samples: int = 100,
        tied: bool = True,
        layers: int = 2,
        width: int = 32,
        heads: int = 4,
        length: int = 64,
    ) -> None:
        super().__init__(
            samples=PER_SAMPLE * samples, tied=tied, layers=layers, width=width, heads=heads, length=length
        )
        self.samples = samples
        self.held_out = len(self.phrases) // PER_SAMPLE - samples

    def model(self) -> GPT:
        return PackedGPT(
            layers=self.layers, width=self.width, heads=self.heads, length=self.length, tied=self.tied, dropout=0.0
        )

    def collate(self, ids: Sequence[int]) -> Batch:
        """What does not fit is cut off. The last byte of a document foretells nothing."""
        inputs = torch.zeros(len(ids), self.length, dtype=torch.int64)
        targets = torch.full_like(inputs, IGNORE)
        room = self.length // PER_SAMPLE - 2
        for row, index in enumerate(ids):
            at = 0
            for phrase in self.phrases[PER_SAMPLE * index : PER_SAMPLE * (index + 1)]:
                text = torch.tensor([BEGIN, *phrase[:room], END])
                inputs[row, at : at + len(text)] = text
                targets[row, at : at + len(text) - 1] = text[1:]
                at += len(text)
        return Batch(inputs, targets)

    def documents(self, batch: Batch) -> Tensor | None:
        return numbers(batch.inputs)

    def lacking(self) -> dict[str, str]:
        return {
            **super().lacking(),
            "cp": "needs a recipe whose attention is over whole sequences; packed has a mask of documents",
        }

    def decode(self, tokens: Sequence[int]) -> str:
        names = {BEGIN: "<begin>", END: "<end>"}
        real = (token for token in tokens if token != IGNORE)
        pieces = [names[token] if token in names else bytes([token]).decode(errors="replace") for token in real]
        return "".join(pieces).rstrip("\0")

    def blocks(self, model: nn.Module) -> dict[str, nn.Module]:
        return super().blocks(model)
