"""How a recipe is trained: batch, optimizer, learning rate, clipping; the same for every rung of a matrix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

OPTIMIZERS = ("adamw", "sgd")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainSettings:
    """The ``[train]`` table of a matrix."""

    batch: int = 31
    """Samples of one optimizer step, over all ranks. Odd by default: no world and no micro-batch count divides it."""
    optimizer: str = "adamw"
    learning_rate: float = 3e-3
    """After warm-up."""
    weight_decay: float = 0.1
    """For matrices; norms and biases have none."""
    clip: float | None = 1.0
    """Largest norm of the full gradient that is left as it is; None: no clipping."""
    warmup: int = 4
    """Steps in which the learning rate grows linearly."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TrainSettings:
        """Raises ValueError on an unknown key or a value that no run could use."""
        known = {field.name for field in fields(cls)}
        for key in data:
            if key not in known:
                raise ValueError(f"train.{key} is not known; it must be one of {', '.join(sorted(known))}")
        settings = cls(**data)
        settings.check()
        return settings

    def check(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(f"train.optimizer takes one of {', '.join(OPTIMIZERS)}, not {self.optimizer!r}")
        if self.batch < 1 or self.warmup < 0:
            raise ValueError(f"train.batch ({self.batch}) must be at least 1, train.warmup ({self.warmup}) at least 0")
        if not self.learning_rate > 0 or not self.weight_decay >= 0:
            raise ValueError(
                f"train.learning_rate ({self.learning_rate}) must be above 0, "
                f"train.weight_decay ({self.weight_decay}) not below it"
            )
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"train.clip ({self.clip}) must be above 0; leave it out of a run that does not clip")


def build_optimizer(parameters: Iterable[nn.Parameter], train: TrainSettings) -> torch.optim.Optimizer:
    """AdamW, or SGD with momentum, in two groups: matrices with weight decay, everything of one dimension without.

    More groups where parameters are cut over different meshes: foreach optimizers take tensors of one mesh at a time.
    """
    found: dict[tuple[bool, DeviceMesh | None], list[nn.Parameter]] = {}
    for parameter in (parameter for parameter in parameters if parameter.requires_grad):
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        found.setdefault((parameter.ndim >= 2, mesh), []).append(parameter)
    groups = [
        {"params": each, "weight_decay": train.weight_decay if matrices else 0.0}
        for (matrices, _), each in sorted(found.items(), key=lambda item: not item[0][0])
    ]
    if train.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=train.learning_rate, betas=(0.9, 0.95))
    assert train.optimizer == "sgd", train.optimizer
    return torch.optim.SGD(groups, lr=train.learning_rate, momentum=0.9)
