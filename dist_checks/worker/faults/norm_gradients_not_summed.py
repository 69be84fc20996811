"""O22: under sequence parallelism each tp rank keeps its own part of the gradient of a norm as if it were whole."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.axes import sp
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def sum_partial(parameters: Iterable[nn.Parameter]) -> None:
        for parameter in parameters:
            gradient = parameter.grad
            if isinstance(gradient, DTensor) and any(isinstance(p, Partial) for p in gradient.placements):
                placements = [Replicate() if isinstance(p, Partial) else p for p in gradient.placements]
                parameter.grad = DTensor.from_local(
                    gradient.to_local(), gradient.device_mesh, placements, run_check=False
                )

    sp.sum_partial = sum_partial


FAULT = Fault(
    id="O22",
    title="norm gradients not summed over the ranks that share the sequence",
    source="NVIDIA/Megatron-LM#1446",
    axes=((Axis.SP,),),
    check="replicas",
    plant=plant,
    planted_in={"axes": {"tp": 2, "sp": True, "accum": 5}, "combine": {"mode": "singles"}},
    step=0,
)
