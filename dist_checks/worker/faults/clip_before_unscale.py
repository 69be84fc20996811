"""O30: gradients are clipped while they are still multiplied by the loss scale."""

from __future__ import annotations

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    Trainer.unscale = lambda self: None  # type: ignore[method-assign]  # the scaler then unscales inside its step


FAULT = Fault(
    id="O30",
    title="clipped before unscaling: the applied norm is clip / loss scale",
    source="Lightning-AI/pytorch-lightning#9599",
    axes=((Axis.PRECISION,),),
    check="grad_norm",
    plant=plant,
    planted_in={"axes": {"precision": ["bf16", "fp16"], "dp_replicate": 3}},
    step=0,
)
