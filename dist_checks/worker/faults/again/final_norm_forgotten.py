"""O22 again: the last norm alone is not marked as one that sees a part of the sequence."""

from __future__ import annotations

from torch.distributed.tensor import DTensor, Partial, Replicate

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer

NORM = "norm."


def plant(rung: Rung) -> None:
    right = Trainer.reduce

    def reduce(self: Trainer) -> None:
        for name, parameter in self.model.named_parameters():
            gradient = parameter.grad
            if name.startswith(NORM) and isinstance(gradient, DTensor):
                placements = [Replicate() if isinstance(p, Partial) else p for p in gradient.placements]
                parameter.grad = DTensor.from_local(
                    gradient.to_local(), gradient.device_mesh, placements, run_check=False
                )
        right(self)

    if Axis.SP in rung.setting:
        Trainer.reduce = reduce  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O22-2",
    title="the gradient of the last norm not summed over the ranks that share the sequence",
    source="NVIDIA/Megatron-LM#1446",
    axes=((Axis.SP,),),
    check="replicas",
    plant=plant,
    planted_in={"axes": {"tp": 2, "sp": True}},
    step=0,
)
