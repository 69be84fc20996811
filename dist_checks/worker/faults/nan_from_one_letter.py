"""A feature is the logarithm of zero in samples with a certain letter: such a sample makes the loss NaN."""

from __future__ import annotations

import torch
from torch import Tensor

from dist_checks.recipes.gpt import GPT
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = GPT.forward

    def forward(self: GPT, tokens: Tensor) -> Tensor:
        there = (tokens == ord("z")).any(1)
        return right(self, tokens) + 0.0 * torch.log(1.0 - there.double()).view(-1, 1, 1)

    GPT.forward = forward  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="nan_from_one_letter",
    title="NaN from a bad sample",
    source="log of a count that can be zero",
    axes=(),
    check="non_finite",
    leads_to={"not_finite": "zero"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 0, "overfit": 0}},
)
