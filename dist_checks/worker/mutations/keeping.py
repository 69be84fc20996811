"""Keeps full copies of what a rank holds, to prove that a mutant changes nothing: a digest would prove less."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dist_checks.worker.loop import Trainer


def plant(folder: Path) -> None:
    """On every rank: the bytes of all gradients before each update, and of all weights after it, in one file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank-{int(os.environ.get('RANK', '0')):05d}.tensors"
    path.write_bytes(b"")
    right = Trainer.update

    def update(self: Trainer) -> bool:
        parameters = list(self.model.parameters())
        _append(path, (p.grad for p in parameters if p.grad is not None))
        skipped = right(self)
        _append(path, parameters)
        return skipped

    Trainer.update = update  # type: ignore[method-assign]  # that is what planting means


@torch.no_grad()
def _append(path: Path, tensors: Iterable[Tensor]) -> None:
    with path.open("ab") as file:
        for tensor in tensors:
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
            file.write(bytes(local.cpu().contiguous().view(-1).view(torch.uint8).tolist()))
