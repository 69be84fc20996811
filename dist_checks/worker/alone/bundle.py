"""What one step on one device was made of: saved where it is not finite or jumps, to be run again by itself."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dist_checks.jumps import WINDOW, Usual
from dist_checks.rung import Role

if TYPE_CHECKING:
    from dist_checks.worker.loop import Trainer

NAME = "replay.pt"


class Keeper:
    """Of one rung on one device: keeps one step, the first that is not finite, or before there is one, the first that
    jumps where a rung learns."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._losses: list[float] = []
        self._norms: list[float | None] = []
        self._first: list[float | None] | None = None
        self._kept: bool | None = None
        """A step that is not finite; None as long as nobody has looked whether there is one."""
        self._jumped = False
        self._before: dict[str, Any] = {}

    @property
    def _wanted(self) -> bool:
        if self._kept is None:
            folder = self._trainer.payload.get("folder")
            alone = self._trainer.world.layout.world_size == 1 and bool(folder)
            self._kept = not alone or (Path(str(folder)) / NAME).exists()
        return not self._kept

    def before(self) -> None:
        """A step: what it may change before it is known to be wrong. Weights and optimizer change last."""
        if self._wanted:
            self._before = {
                "rng": torch.get_rng_state(),
                "python": random.getstate(),
                "buffers": {name: buffer.clone() for name, buffer in self._trainer.model.named_buffers()},
            }

    def after(self, step: int, loss_sum: float | None, targets: int) -> None:
        """Its backward, before the optimizer's step. What a loss scaler is going to skip, and get over, is no reason: a
        loss that is not finite is."""
        if not self._wanted:
            return
        trainer = self._trainer
        numbers = (loss_sum, None if trainer.scaler is not None else trainer.norm)
        if not all(number is None or math.isfinite(number) for number in numbers):
            self._kept = True
            self._save(step, loss_sum, targets)
        elif trainer.rung.role is Role.LEARN and loss_sum is not None and targets:
            loss = loss_sum / targets
            enough = len(self._losses) >= WINDOW
            if enough and not self._jumped and self._usual.jumps(loss, trainer.norm):
                self._jumped = True
                self._save(step, loss_sum, targets)
            self._first = self._first or [loss, trainer.norm]
            self._losses = [*self._losses[-WINDOW:], loss]
            self._norms = [*self._norms[-WINDOW:], trainer.norm]

    @property
    def _usual(self) -> Usual:
        return Usual.of(self._losses, self._norms, self._first)

    def _save(self, step: int, loss_sum: float | None, targets: int) -> None:
        trainer = self._trainer
        seen = {"losses": self._losses[-WINDOW:], "norms": self._norms[-WINDOW:], "first": self._first}
        usual = seen if self._jumped else None
        kept = {**self._before, "usual": None if self._kept else usual, "targets": targets}
        path = save(trainer, kept, step, loss_sum, trainer.norm, Path(trainer.payload["folder"]))
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
