"""O29 again: masks are drawn from a generator that checkpointing does not know, so it is not put back."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    own = torch.Generator()
    begun = False

    def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        nonlocal begun
        if not training or p == 0:
            return input
        if not begun:
            own.set_state(torch.get_rng_state())  # as a framework does that forks the state once
            begun = True
        return input * torch.empty_like(input).bernoulli_(1 - p, generator=own) / (1 - p)

    if Axis.CKPT_ACT in rung.setting:
        F.dropout = dropout


FAULT = Fault(
    id="O29-2",
    title="dropout from a generator of its own, which is not put back for the recomputation",
    source="allenai/OLMo-core PR#828",
    axes=((Axis.CKPT_ACT,),),
    check="gradients",
    plant=plant,
    planted_in={
        "axes": {"ckpt_act": True, "precision": "bf16"},
        "combine": {"mode": "singles"},
        "options": {"dropout": 0.1},
    },
    step=0,
)
