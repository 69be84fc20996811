"""gpt on prompts and their answers, as in fine-tuning: only answers are trained on, and texts are of two sources."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dist_checks.recipes.base import IGNORE, Batch
from dist_checks.recipes.gpt import GPTRecipe

BEGIN, END = 1, 2
"""Bytes that the text does not have."""
SHARES = {"manual": 0.75, "notes": 0.25}
LONGEST = 8
"""Bytes of a prompt."""


def sources(count: int) -> list[str]:
    """Of each sample, one in four from the notes."""
    return ["notes" if sample % 4 == 3 else "manual" for sample in range(count)]


def framed(text: bytes) -> list[int]:
    """A text as the model reads it, begun and ended once."""
    return [BEGIN, *text, END]


def ignored(targets: Tensor, prompt: int) -> Tensor:
    """The targets of one sample without those of its prompt."""
    return torch.cat([torch.full_like(targets[:prompt], IGNORE), targets[prompt:]])


class AnswersRecipe(GPTRecipe):
    """Sample ``i`` is phrase i: its first word is the prompt, the others are the answer."""

    name = "answers"
    begin: int | None = BEGIN
    end: int | None = END
    mixture = SHARES

    def __init__(
        self,
        *,
        samples: int = 150,
        tied: bool = True,
        layers: int = 4,
        width: int = 32,
        heads: int = 4,
        length: int = 32,
    ) -> None:
        super().__init__(samples=samples, tied=tied, layers=layers, width=width, heads=heads, length=length)
        self.sources = sources(len(self.phrases))

    def source(self, sample: int) -> str:
        return self.sources[sample]

    def prompt(self, sample: int) -> int:
        """With the byte that begins it."""
        return 1 + min(LONGEST, len(self.phrases[sample].split()[0]))

    def collate(self, ids: Sequence[int]) -> Batch:
        """What does not fit is cut off, so that each text has its end."""
        inputs = torch.zeros(len(ids), self.length, dtype=torch.int64)
        targets = torch.full_like(inputs, IGNORE)
        for row, index in enumerate(ids):
            text = torch.tensor(framed(self.phrases[index][: self.length - 3]))
            inputs[row, : len(text)] = text
            targets[row, : len(text) - 1] = ignored(text[1:], self.prompt(index))
        return Batch(inputs, targets)

    def decode(self, tokens: Sequence[int]) -> str:
        names = {BEGIN: "<begin>", END: "<end>"}
        real = (token for token in tokens if token != IGNORE)
        pieces = [names[token] if token in names else bytes([token]).decode(errors="replace") for token in real]
        return "".join(pieces).rstrip("\0")
