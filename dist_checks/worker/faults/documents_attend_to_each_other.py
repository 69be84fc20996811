"""Packed documents are one sequence for attention."""

from __future__ import annotations

import torch
from torch import Tensor

from dist_checks.recipes import packed
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def mask(documents: Tensor) -> Tensor:
        return torch.ones_like(documents).bool().unsqueeze(1).expand(-1, documents.shape[1], -1).tril().unsqueeze(1)

    packed.mask = mask


FAULT = Fault(
    id="documents_attend_to_each_other",
    title="cross-document attention",
    source="packing without a block-diagonal mask",
    axes=(),
    check="documents",
    leads_to={"documents_mixed": "mask"},
    blamed="recipe",
    plant=plant,
    planted_in={"recipe": "packed", "axes": {}, "single": {"learn": 2, "overfit": 0}, "options": {"samples": 62}},
)
