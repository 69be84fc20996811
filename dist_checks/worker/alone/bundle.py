"""What one step on one device was made of: saved where a number is not finite, to be run again by itself."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from dist_checks.worker.loop import Trainer

NAME = "replay.pt"


def state(trainer: Trainer) -> dict[str, Any]:
    """Before a step: what that step may change before it is known to be wrong. Weights and optimizer change last."""
    return {
        "rng": torch.get_rng_state(),
        "python": random.getstate(),
        "buffers": {name: buffer.clone() for name, buffer in trainer.model.named_buffers()},
    }


def wanted(trainer: Trainer) -> bool:
    """One device, and none saved yet."""
    folder = trainer.payload.get("folder")
    return trainer.world.layout.world_size == 1 and bool(folder) and not (Path(str(folder)) / NAME).exists()


def save_if_not_finite(trainer: Trainer, before: Mapping[str, Any], step: int, loss_sum: float | None) -> None:
    """What a loss scaler is going to skip, and get over, is no reason: a loss that is not finite is."""
    numbers = (loss_sum, None if trainer.scaler is not None else trainer.norm)
    if all(number is None or math.isfinite(number) for number in numbers):
        return
    path = save(trainer, before, step, loss_sum, trainer.norm, Path(trainer.payload["folder"]))
    trainer.probe.observe("bundle", of=step, path=str(path))


def save(
    trainer: Trainer, before: Mapping[str, Any], step: int, loss_sum: float | None, norm: float, folder: Path
) -> Path:
    """Rank 0 only, after backward and before the optimizer's step."""
    _, micro_batches = trainer.read(step)
    path = folder / NAME
    # Not that a fault was planted: nothing that is stored says so.
    torch.save(
        {
            "schema": 1,
            "step": step,
            "ids": micro_batches,
            "loss_sum": loss_sum,
            "norm": norm,
            "loss_scale": trainer.loss_scale,
            "rung": trainer.rung.to_json(),
            "recipe": trainer.payload.get("recipe"),
            "options": dict(trainer.payload.get("options") or {}),
            "single": dict(trainer.payload.get("single") or {}),
            "train": asdict(trainer.train),
            "weights": {name: _kept(x) for name, x in trainer.model.state_dict().items()},
            "optimizer": trainer.optimizer.state_dict(),
            **before,
        },
        path,
    )
    return path


def _kept(x: Any) -> Any:
    return x.detach().clone() if isinstance(x, Tensor) else x


def load(path: Path) -> dict[str, Any]:
    """Raises ValueError where it is no bundle."""
    try:
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if found["schema"] != 1:
            raise ValueError(f"schema {found['schema']}")
    except (OSError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no replay bundle: {error}") from None
    return found
