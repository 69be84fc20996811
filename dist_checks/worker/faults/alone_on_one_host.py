"""O34: on one host the sampler does not see the other ranks: all of its ranks read the batch as if they were alone."""

from __future__ import annotations

from dist_checks.rung import Rung
from dist_checks.worker import data
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.faults.hosts import BAD, host
from dist_checks.worker.loop import Trainer


def plant(rung: Rung) -> None:
    def read(self: Trainer, index: int) -> tuple[int, list[list[int]]]:
        epoch, ids = data.read(index, self.recipe.samples, self.train.batch, self.rung.seed)
        return epoch, data.micro_batches(data.part(ids, 0, self.data_size), self.accum)

    if host() == BAD:
        Trainer.read = read  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O34",
    title="the ranks of one host all read what rank 0 reads",
    source="k2-fsa/icefall#1616",
    axes=(),
    blamed="host",
    check="samples",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 4, "dp_shard": 4, "tp": 2}, "combine": {"mode": "singles"}},
    hosts=2,
    step=0,
)
