"""Attention gives zeros: each token is alone."""

from __future__ import annotations

from torch import Tensor

from dist_checks.recipes import gpt
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return v * 0

    gpt.causal = attend


FAULT = Fault(
    id="attention_does_nothing",
    title="attention that mixes nothing",
    source="a mask that closes everything, with zeros for NaN",
    axes=(),
    check="causal",
    leads_to={"inputs_ignored": "attention"},
    blamed="recipe",
    plant=plant,
    planted_in={"axes": {}, "single": {"learn": 2, "overfit": 0}},
)
