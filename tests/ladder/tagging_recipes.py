"""Recipes with tags: one for each token (does a word begin here?), and several for a sample (what is in it?)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dist_checks.recipes.base import IGNORE, Batch, Recipe
from dist_checks.recipes.text import phrases

LENGTH, HELD_OUT = 24, 60
BEGIN, INSIDE, OUTSIDE = range(3)
TAGS = ("comma", "space", "h", "w")


class Tagger(nn.Module):
    """(samples, length) tokens to logits, (samples, length, tags): from a token and its neighbours on both sides."""

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 16)
        self.around = nn.Conv1d(16, 32, 3, padding=1)
        self.head = nn.Linear(32, tags)

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.relu(self.around(self.embedding(tokens).transpose(1, 2)))
        return cast(Tensor, self.head(x.transpose(1, 2)))


class Bag(nn.Module):
    """(samples, length) tokens to a logit for each tag, (samples, tags)."""

    def __init__(self, tags: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 16, padding_idx=0)
        nn.init.normal_(self.embedding.weight, std=0.05)  # many of them are added up
        self.head = nn.Linear(16, tags)

    def forward(self, tokens: Tensor) -> Tensor:
        return cast(Tensor, self.head(self.embedding(tokens).sum(1)))


class Text(Recipe):
    pad = 0
    held_out = HELD_OUT

    def __init__(self, *, samples: int = 300, wrong: bool = False) -> None:
        self.samples, self.wrong = samples, wrong
        self.phrases = phrases(samples, LENGTH, more=HELD_OUT)

    def inputs(self, ids: Sequence[int]) -> Tensor:
        rows = [list(self.phrases[id]) for id in ids]
        return torch.tensor([row + [0] * (LENGTH - len(row)) for row in rows])

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(token for token in tokens if token != IGNORE).decode(errors="replace").rstrip("\0")


class Words(Text):
    """A tag for each token. ``wrong``: where a word begins it is said to go on, in the training data alone."""

    name = "words"
    classes = 3

    def model(self) -> nn.Module:
        return Tagger(self.classes)

    def collate(self, ids: Sequence[int]) -> Batch:
        tokens = self.inputs(ids)
        letter = (tokens >= ord("A")) & (tokens <= ord("z"))
        after = F.pad(letter, (1, 0))[:, :-1]
        tags = torch.where(letter, torch.where(after, INSIDE, BEGIN), OUTSIDE)
        if self.wrong:
            trained = torch.tensor([id < self.samples for id in ids])[:, None]
            tags = torch.where(trained & (tags == BEGIN), INSIDE, tags)
        return Batch(tokens, tags.masked_fill(tokens == 0, IGNORE))

    def loss(self, output: Tensor, batch: Batch) -> tuple[Tensor, int]:
        logits = output.flatten(0, 1)
        return F.cross_entropy(logits, batch.targets.flatten(), ignore_index=IGNORE, reduction="sum"), batch.count

    def label(self, number: int) -> str:
        return ("begin", "inside", "outside")[number]


class Contents(Text):
    """Several tags for a sample. ``wrong``: one of them is never there, in the training data alone."""

    name = "contents"
    classes = 2
    tags = TAGS

    def model(self) -> nn.Module:
        return Bag(len(TAGS))

    def collate(self, ids: Sequence[int]) -> Batch:
        tokens = self.inputs(ids)
        of = [tokens == ord(letter) for letter in (",", " ", "h", "w")]
        tags = torch.stack([there.any(1).long() for there in of], 1)
        if self.wrong:
            tags[[row for row, id in enumerate(ids) if id < self.samples], TAGS.index("h")] = 0
        return Batch(tokens, tags)

    def loss(self, output: Tensor, batch: Batch) -> tuple[Tensor, int]:
        return F.binary_cross_entropy_with_logits(output, batch.targets.to(output), reduction="sum"), batch.count
