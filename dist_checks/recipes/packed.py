"""gpt with several phrases packed into each sample: attention and positions begin anew with each of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

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


def places(documents: Tensor) -> Tensor:
    """Of each token, how many tokens of its document come before it, (samples, length); of padding likewise."""
    place = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = documents.diff(dim=1, prepend=documents[:, :1] - 1) != 0
    return place - torch.where(begins, place, 0).cummax(1).values


def masked(allowed: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


class PackedGPT(GPT):
    """With ``learned`` positions an embedding of the place of each token is added to its own, beside rotary."""

    def __init__(self, *, learned: bool, length: int, width: int, **settings: Any) -> None:
        super().__init__(length=length, width=width, **settings)
        self.places = nn.Embedding(length, width) if learned else None
        if self.places is not None:
            self.initialise(self.places)

    def forward(self, tokens: Tensor) -> Tensor:
        documents = numbers(tokens)
        place = places(documents)
        cos, sin = (table[place].unsqueeze(1) for table in (self.cos, self.sin))
        allowed = mask(documents)
        for module in self.modules():
            if isinstance(module, Attention):
                module.attend = partial(masked, allowed)
        x = self.embedding(tokens)
        x = self.drop(x if self.places is None else x + self.places(place))
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
        learned: bool = False,
    ) -> None:
        super().__init__(
            samples=PER_SAMPLE * samples, tied=tied, layers=layers, width=width, heads=heads, length=length
        )
        self.samples, self.learned = samples, learned
        self.held_out = len(self.phrases) // PER_SAMPLE - samples

    def model(self) -> GPT:
        return PackedGPT(
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            length=self.length,
            tied=self.tied,
            dropout=0.0,
            learned=self.learned,
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
        learned = {"tp": "needs a plan for each parameter; packed has none for learned positions"}
        return {
            **super().lacking(),
            **(learned if self.learned else {}),
            "cp": "needs a recipe whose attention is over whole sequences; packed has a mask of documents",
        }

    def decode(self, tokens: Sequence[int]) -> str:
        names = {BEGIN: "<begin>", END: "<end>"}
        real = (token for token in tokens if token != IGNORE)
        pieces = [names[token] if token in names else bytes([token]).decode(errors="replace") for token in real]
        return "".join(pieces).rstrip("\0")

    def blocks(self, model: nn.Module) -> dict[str, nn.Module]:
        return super().blocks(model)
