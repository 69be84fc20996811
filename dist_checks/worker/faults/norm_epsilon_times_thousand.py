"""Norms have an epsilon of 1e-2: a checkpoint of another implementation computes something else."""

from __future__ import annotations

from typing import Any

from torch import nn

from dist_checks.recipes.gpt import GPT
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = GPT.__init__

    def init(self: GPT, **fields: Any) -> None:
        right(self, **fields)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = 1e-2

    GPT.__init__ = init  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="norm_epsilon_times_thousand",
    title="another epsilon in norms",
    source="1e-6 against 1e-5 between implementations of the same model",
    axes=(),
    check="models",
    leads_to={"not_like_reference": "epsilon"},
    blamed="recipe",
    plant=plant,
)
