"""Keeps full copies of what a rank holds, to prove that a mutant changes nothing: a digest would prove less.

Read where torch and DeepSpeed keep it, not through what records a trace.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dist_checks.worker.loop import Trainer
from dist_checks.worker.mutations import loops
from dist_checks.worker.mutations.loops import Method


def plant(folder: Path) -> None:
    """On every rank: the bytes of all gradients before clipping, and of all weights, buffers and optimizer state after
    the update of each step, in one file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"rank-{int(os.environ.get('RANK', '0')):05d}.tensors"
    path.write_bytes(b"")

    def kept_before(right: Method) -> Method:
        def clip(self: Trainer) -> None:
            _append(path, gradients(self))
            right(self)

        return clip

    def kept_after(right: Method) -> Method:
        def update(self: Trainer) -> bool:
            skipped: bool = right(self)
            _append(path, weights(self))
            return skipped

        return update

    loops.replace(clip=kept_before, update=kept_after)


def gradients(trainer: Trainer) -> Iterator[Tensor]:
    """Of the parameters, and DeepSpeed's partitions of them."""
    for parameter in trainer.model.parameters():
        if parameter.grad is not None:
            yield parameter.grad
    yield from tensors(getattr(getattr(trainer.model, "optimizer", None), "averaged_gradients", None))


def weights(trainer: Trainer) -> Iterator[Tensor]:
    """What the model computes with, what the optimizer steps, and its state."""
    for parameter in trainer.model.parameters():
        yield parameter
        yield from tensors(getattr(parameter, "ds_tensor", None))
    yield from trainer.model.buffers()
    for group in trainer.optimizer.param_groups:
        yield from tensors(group["params"])
    inner = getattr(trainer.optimizer, "optim", trainer.optimizer)
    for state in inner.state.values():
        yield from tensors(state)


def tensors(found: Any) -> Iterator[Tensor]:
    if isinstance(found, Tensor):
        yield found
    elif isinstance(found, dict):
        for value in found.values():
            yield from tensors(value)
    elif isinstance(found, list | tuple):
        for value in found:
            yield from tensors(value)


@torch.no_grad()
def _append(path: Path, found: Iterable[Tensor]) -> None:
    with path.open("ab") as file:
        for tensor in found:
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()
            local = local.cpu().contiguous()
            file.write(f"{local.dtype} {tuple(local.shape)}\n".encode())
            file.write(ctypes.string_at(local.data_ptr(), local.nbytes) if local.nbytes else b"")
