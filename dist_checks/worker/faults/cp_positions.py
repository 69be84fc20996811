"""Rotary positions that begin at 0 on every rank of cp."""

from __future__ import annotations

from torch import nn

from dist_checks.axes import Axis
from dist_checks.recipes.base import Attend
from dist_checks.recipes.gpt import GPTRecipe
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = GPTRecipe.split_sequence

    def split_sequence(self: GPTRecipe, model: nn.Module, start: int, attend: Attend) -> None:
        right(self, model, 0, attend)

    GPTRecipe.split_sequence = split_sequence  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="cp_positions",
    title="every part of the sequence has the positions of the first",
    source="positions made from the length of what a rank holds",
    axes=((Axis.CP,),),
    check="forward",
    plant=plant,
    planted_in={"axes": {"cp": 2, "accum": 5}, "combine": {"mode": "singles"}},
    step=0,
)
