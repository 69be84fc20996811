"""A small loop with a probe in it, as a user would write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dist_checks import Probe


class Model(nn.Module):
    """Tied: ``head.weight`` is ``embedding.weight``. Dropout, so that random numbers are drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6), nn.Dropout(0.1)) for _ in range(2))
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor([2.0]))
        self.seen: Tensor
        self.register_buffer("seen", torch.tensor(0), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen += 1
        x = self.embedding(tokens) * self.scale
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.frozen(x))  # type: ignore[no-any-return]


def made(seed: int = 0) -> tuple[Model, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Model()
    return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def batch(*ids: int) -> dict[str, Tensor]:
    return {"idx": torch.tensor(ids), "tokens": torch.stack([torch.arange(5) * (i + 1) % 11 for i in ids])}


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), (tokens.flatten() + 1) % 11, reduction="sum")


def train(model: nn.Module, optimizer: torch.optim.Optimizer, probe: Probe, steps: int = 2, accum: int = 2) -> None:
    for step in range(steps):
        total = 0.0
        for micro in range(accum):
            b = batch(10 * step + 2 * micro, 10 * step + 2 * micro + 1)
            probe.micro_batch(b["idx"])
            loss = loss_of(model, b["tokens"])
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        probe.gradients()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        probe.norm(used=norm, limit=1.0, printed=norm)
        optimizer.step()
        probe.step(loss_sum=total, targets=20, printed_loss=total / 20)
        optimizer.zero_grad()


def attach(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path, **options: Any) -> Probe:
    header = {"rung": "single", "world_size": 1, "device": "cpu", "coordinates": {}}
    return Probe.attach(model, optimizer, folder=folder, rank=0, header=header, **options)
