"""O29's sibling that needs two axes: the checkpointing of the tensor-parallel layers does not put the state back."""

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

    if rung.setting.degree(Axis.TP) > 1:
        ckpt_act.wrap = wrap


FAULT = Fault(
    id="tp_ckpt_masks",
    title="under tp the random state is not put back for the recomputation",
    source="allenai/OLMo-core PR#828 is the same without tp; Megatron keeps a random state of its own for tp",
    axes=((Axis.CKPT_ACT, Axis.TP),),
    check="gradients",
    plant=plant,
    planted_in={"axes": {"tp": 2, "ckpt_act": True}, "options": {"dropout": 0.1}},
    step=0,
)
