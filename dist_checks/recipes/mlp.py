"""A classifier of points: the smallest recipe that has classes and no sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dist_checks.recipes.base import IGNORE, Batch, Recipe

CLASSES, FEATURES, HELD_OUT = 10, 16, 60
SPREAD = 0.8
"""Of the points of a class around its centre, whose coordinates are spread by 1: some classes are easily confused."""


class MLP(nn.Module):
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, width)
        self.second = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, points: Tensor) -> Tensor:
        """(samples, features) to logits, (samples, classes)."""
        x = F.relu(self.first(points.to(self.first.weight.dtype)))
        return cast(Tensor, self.head(F.relu(self.second(x))))


class MLPRecipe(Recipe):
    """Which of ten clusters is a point from? Points are normalised, and drawn by a generator of their own."""

    name = "mlp"
    classes = CLASSES
    spares_norms = True
    held_out = HELD_OUT

    def __init__(self, *, samples: int = 400, width: int = 32) -> None:
        if samples < 1 or width < 1:
            raise ValueError("options.samples and width must be at least 1")
        self.samples, self.width = samples, width
        draw = torch.Generator().manual_seed(7)
        total = samples + HELD_OUT
        centres = torch.randn(CLASSES, FEATURES, generator=draw)
        self.labels = torch.randint(CLASSES, (total,), generator=draw)
        points = centres[self.labels] + SPREAD * torch.randn(total, FEATURES, generator=draw)
        self.points = (points - points.mean(0)) / points.std(0)

    def model(self) -> nn.Module:
        return MLP(self.width, self.classes)

    def collate(self, ids: Sequence[int]) -> Batch:
        rows = torch.tensor(list(ids), dtype=torch.int64)
        return Batch(self.points[rows], self.labels[rows])

    def loss(self, output: Tensor, batch: Batch) -> tuple[Tensor, int]:
        logits = output.to(torch.promote_types(output.dtype, torch.float32))
        return F.cross_entropy(logits, batch.targets, ignore_index=IGNORE, reduction="sum"), batch.count

    def evaluate(self, model: nn.Module) -> Mapping[str, float]:
        """The share of held-out points whose cluster is found."""
        batch = self.collate(range(self.samples, self.samples + self.held_out))
        device = next(model.parameters()).device
        said = model(batch.inputs.to(device)).argmax(-1).cpu()
        return {"accuracy": float((said == batch.targets).double().mean())}

    def decode(self, tokens: Sequence[int]) -> str:
        return " ".join(f"cluster {token}" for token in tokens if token != IGNORE)
