"""Every rank of a pipeline trains the whole model, as one whose number of stages was never set."""

from __future__ import annotations

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker import trainers
from dist_checks.worker.axes import pp
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    if rung.setting.degree(Axis.PP) > 1:
        pp.apply = lambda model, recipe, world: model
        trainers.choose = lambda world: Trainer


FAULT = Fault(
    id="pp_off",
    title="pp is silently not applied: a schedule of one stage",
    source="an option that is read under another name",
    axes=((Axis.PP,),),
    check="engaged",
    plant=plant,
)
