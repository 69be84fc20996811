"""Attention sees the tokens that are to be foretold."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from dist_checks.recipes import gpt
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)

    gpt.causal = attend


FAULT = Fault(
    id="causal_mask_missing",
    title="no causal mask",
    source="is_causal left out when a hand-written attention was replaced by a fused one",
    axes=(),
    check="causal",
    leads_to={"future_seen": "mask", "too_good": "mask"},
    blamed="recipe",
    plant=plant,
    planted_in={
        "axes": {},
        "single": {"learn": 160, "overfit": 0},
        "train": {"learning_rate": 6e-3},
        "options": {"layers": 1, "width": 32},
    },
)
