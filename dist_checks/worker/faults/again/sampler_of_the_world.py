"""O24 again: torch's own DistributedSampler with its defaults, which are rank and world size of all ranks."""

from __future__ import annotations

from typing import Any, cast

from torch.utils.data import DistributedSampler

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker import data
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    def read(self: Trainer, index: int) -> tuple[int, list[list[int]]]:
        epoch, ids = data.read(index, self.recipe.samples, self.train.batch, self.rung.seed)
        sampler: Any = DistributedSampler(cast(Any, ids), shuffle=False)
        mine = [ids[at] for at in sampler]
        return epoch, data.micro_batches(mine, self.accum)

    if rung.setting.degree(Axis.TP) > 1:
        Trainer.read = read  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O24-2",
    title="a DistributedSampler with its defaults under tp: each rank of a group has other samples",
    source="deepspeedai/DeepSpeed#99",
    axes=((Axis.TP,),),
    check="samples",
    plant=plant,
    planted_in={"axes": {"tp": 2, "dp_replicate": 3}, "combine": {"mode": "singles"}},
    step=0,
)
