"""The sampler pads an epoch until data ranks are even: some samples of its last batch are trained on twice."""

from __future__ import annotations

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker import data
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    def read(self: Trainer, index: int) -> tuple[int, list[list[int]]]:
        epoch, ids = data.read(index, self.recipe.samples, self.train.batch, self.rung.seed)
        if (index + 1) % data.steps_of_epoch(self.recipe.samples, self.train.batch) == 0:
            ids += ids[: -len(ids) % self.data_size]
        return epoch, data.micro_batches(data.part(ids, self.world.data_rank, self.data_size), self.accum)

    Trainer.read = read  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="last_batch_padded",
    title="the last batch of an epoch is padded by samples that are in it already",
    source="torch.utils.data.DistributedSampler, drop_last=False: extra samples make the set evenly divisible",
    axes=((Axis.DP_REPLICATE,), (Axis.DP_SHARD,)),
    check="samples",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 4, "accum": 2}, "steps": 3, "options": {"samples": 61}},
    step=1,
)
