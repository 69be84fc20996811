"""Rotary embedding has the base of another model: distances in the sequence mean something else."""

from __future__ import annotations

import torch
from torch import Tensor

from dist_checks.recipes import gpt
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def rotation(length: int, size: int) -> tuple[Tensor, Tensor]:
        frequencies = 500000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angles = torch.arange(length, dtype=torch.float64).outer(frequencies)
        return angles.cos().float(), angles.sin().float()

    gpt.rotation = rotation


FAULT = Fault(
    id="rotary_base_of_another_model",
    title="another rotary base",
    source="rope_theta left at its default when weights of a longer context are loaded",
    axes=(),
    check="models",
    leads_to={"not_like_reference": "rotary"},
    blamed="recipe",
    plant=plant,
)
