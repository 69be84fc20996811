"""Logits begin at the frequencies of bytes: weights were loaded, and nobody said so."""

from __future__ import annotations

import torch
from torch import Tensor

from dist_checks.recipes.gpt import GPT, VOCABULARY
from dist_checks.recipes.text import phrases
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = GPT.forward

    def forward(self: GPT, tokens: Tensor) -> Tensor:
        counts = torch.bincount(torch.tensor(list(b"".join(phrases(150, 33)))), minlength=VOCABULARY)
        return right(self, tokens) + torch.log((counts + 0.1) / counts.sum())

    GPT.forward = forward  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="logits_know_frequencies",
    title="weights that were loaded",
    source="a checkpoint in the cache that from_pretrained found",
    axes=(),
    check="step_zero",
    leads_to={"first_loss_low": "leak"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 0, "overfit": 0}},
)
