"""O24: the sampler cuts the batch by rank and world, so the ranks of one tp group read different samples."""

from __future__ import annotations

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker import data
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    def read(self: Trainer, index: int) -> tuple[int, list[list[int]]]:
        epoch, ids = data.read(index, self.recipe.samples, self.train.batch, self.rung.seed)
        world = self.world.layout.world_size
        padded = ids + ids[: -len(ids) % world]  # as DistributedSampler does, so that every rank has as many
        return epoch, data.micro_batches(data.part(padded, self.world.rank, world), self.accum)

    if rung.setting.degree(Axis.TP) > 1:
        Trainer.read = read  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O24",
    title="tp ranks read different samples",
    source="deepspeedai/DeepSpeed#99",
    axes=((Axis.TP,),),
    check="samples",
    plant=plant,
    planted_in={"axes": {"tp": 2, "dp_replicate": 3}, "combine": {"mode": "singles"}},
    step=0,
)
