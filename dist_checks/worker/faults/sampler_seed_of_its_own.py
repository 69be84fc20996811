"""O02: each data rank shuffles with a seed of its own, so their parts are cut from different permutations."""

from __future__ import annotations

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker import data
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    def read(self: Trainer, index: int) -> tuple[int, list[list[int]]]:
        seed = self.rung.seed + self.world.data_rank
        epoch, ids = data.read(index, self.recipe.samples, self.train.batch, seed)
        return epoch, data.micro_batches(data.part(ids, self.world.data_rank, self.data_size), self.accum)

    Trainer.read = read  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O02",
    title="sampler seeds differ over ranks: some samples are read twice, some never",
    source="NVlabs/LongLive#71",
    axes=((Axis.DP_REPLICATE,), (Axis.DP_SHARD,)),
    check="samples",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "accum": 5}},
    step=0,
)
