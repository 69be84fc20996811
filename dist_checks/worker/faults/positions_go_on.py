"""Positions go on over packed documents, where they should begin anew with each."""

from __future__ import annotations

import torch
from torch import Tensor

from dist_checks.recipes import packed
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def places(documents: Tensor) -> Tensor:
        return torch.arange(documents.shape[1], device=documents.device).expand_as(documents)

    packed.places = places


FAULT = Fault(
    id="positions_go_on",
    title="position ids that run on over packed documents",
    source="arange(length) for position_ids of a packed batch, with learned positions",
    axes=(),
    check="documents",
    leads_to={"documents_mixed": "positions"},
    blamed="recipe",
    plant=plant,
    planted_in={
        "recipe": "packed",
        "axes": {},
        "single": {"learn": 2, "overfit": 0},
        "options": {"samples": 62, "learned": True},
    },
)
