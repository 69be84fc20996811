"""O25: first and last stage have a copy of the embedding each, and the gradients of the two are never added up."""

from __future__ import annotations

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    if rung.setting.degree(Axis.PP) > 1:
        from dist_checks.worker.pipelining import PipelineTrainer

        PipelineTrainer.sum_ties = lambda self: None  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O25",
    title="tied embedding: the gradients of its copies on two stages are not summed",
    source="uw-syfi/piper#13",
    axes=((Axis.PP,),),
    check="replicas",
    plant=plant,
    planted_in={"axes": {"pp": 2, "accum": 5}, "combine": {"mode": "singles"}},
    step=0,
)
