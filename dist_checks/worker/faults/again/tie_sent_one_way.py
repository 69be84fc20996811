"""O25 again: the last stage sends its gradient of the tied embedding to the first and keeps what it has."""

from __future__ import annotations

import torch

from dist_checks.axes import Axis
from dist_checks.recipes.base import local
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    if rung.setting.degree(Axis.PP) == 1:
        return
    from dist_checks.worker.pipelining import PipelineTrainer

    right = PipelineTrainer.sum_ties

    def sum_ties(self: PipelineTrainer) -> None:
        own = {name: local(p.grad).clone() for name in self.tie_groups if (p := self.parameter(name)).grad is not None}
        right(self)
        with torch.no_grad():
            for name, gradient in own.items() if not self.is_first else ():
                held = self.parameter(name).grad
                assert held is not None
                local(held).copy_(gradient)

    PipelineTrainer.sum_ties = sum_ties  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O25-2",
    title="tied embedding: only the copy on the first stage has the whole gradient",
    source="uw-syfi/piper#13",
    axes=((Axis.PP,),),
    check="replicas",
    plant=plant,
    planted_in={"axes": {"pp": 2, "accum": 5}, "combine": {"mode": "singles"}},
    step=0,
)
