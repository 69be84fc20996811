"""Whatever schedule is asked for, all forward passes come first and all backward passes afterwards."""

from __future__ import annotations

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    if Axis.SCHEDULE in rung.setting:
        from torch.distributed.pipelining import schedules

        from dist_checks.worker import pipelining

        several = schedules.ScheduleLoopedBFS  # gpipe, where a rank has several stages
        pipelining.SCHEDULES = {
            name: several if name == "interleaved" else schedules.ScheduleGPipe for name in pipelining.SCHEDULES
        }


FAULT = Fault(
    id="schedule_off",
    title="the schedule is silently gpipe",
    source="an option that is read under another name",
    axes=((Axis.SCHEDULE,),),
    check="engaged",
    plant=plant,
)
