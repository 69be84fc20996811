"""gpt on prompts and their answers, as in fine-tuning: only answers are trained on, and texts are of two sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from dist_checks.recipes.base import IGNORE, Batch
from dist_checks.recipes.gpt import GPT, GPTRecipe

BEGIN, END = 1, 2
"""Bytes that the text does not have."""
SHARES = {"manual": 0.75, "notes": 0.25}
LONGEST = 8
"""Bytes of a prompt."""
STEPS = 30
"""Of the training that a checkpoint comes from."""


def sources(count: int) -> list[str]:
    """Of each sample, one in four from the notes."""
    return ["notes" if sample % 4 == 3 else "manual" for sample in range(count)]


def framed(text: bytes) -> list[int]:
    """A text as the model reads it, begun and ended once."""
    return [BEGIN, *text, END]


def ignored(targets: Tensor, prompt: int) -> Tensor:
    """The targets of one sample without those of its prompt."""
    return torch.cat([torch.full_like(targets[:prompt], IGNORE), targets[prompt:]])


def load(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    model.load_state_dict(weights)


@cache
def checkpoint(options: tuple[tuple[str, Any], ...]) -> Mapping[str, Tensor]:
    """What stands for a checkpoint: the same weights in every process, from a short training in float32."""
    recipe = AnswersRecipe(**dict(options))
    batch = recipe.collate(range(min(recipe.samples, 64)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = GPTRecipe.model(recipe)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss_sum, count = recipe.loss(model(batch.inputs), batch)
            torch.autograd.backward(loss_sum / count)
            optimizer.step()
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


class AnswersRecipe(GPTRecipe):
    """Sample ``i`` is phrase i: its first word is the prompt, the others are the answer. ``trained``: the model starts
    from weights that have seen such texts."""

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
        trained: bool = False,
    ) -> None:
        options: dict[str, Any] = {
            "samples": samples,
            "tied": tied,
            "layers": layers,
            "width": width,
            "heads": heads,
            "length": length,
        }
        super().__init__(**options)
        self.options = tuple(options.items())
        self.starts_trained = trained
        self.sources = sources(len(self.phrases))

    def model(self) -> GPT:
        model = super().model()
        if self.starts_trained:
            load(model, checkpoint(self.options))
        return model

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
