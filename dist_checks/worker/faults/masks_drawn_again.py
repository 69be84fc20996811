"""O29: blocks are computed again in backward under another random state, so with other dropout masks."""

from __future__ import annotations

from torch import nn
from torch.distributed._composable.checkpoint_activation import checkpoint

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.axes import ckpt_act
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def wrap(block: nn.Module) -> None:
        checkpoint(block, preserve_rng_state=False)

    ckpt_act.wrap = wrap


FAULT = Fault(
    id="O29",
    title="the random state is not put back for the recomputation: silent without dropout",
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
