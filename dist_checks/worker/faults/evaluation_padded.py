"""O07: the sampler of the evaluation gives all data ranks equally many samples; the metric counts what it repeats."""

from __future__ import annotations

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker import data
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def held_out(samples: int, count: int, data_rank: int, data_size: int) -> list[int]:
        """As torch's DistributedSampler does, with drop_last left at False."""
        ids = list(range(samples, samples + count))
        return data.part(ids + ids[: -count % data_size], data_rank, data_size)

    data.held_out = held_out


FAULT = Fault(
    id="O07",
    title="the set that is evaluated is padded until data ranks are even, and padded samples count",
    source="Lightning-AI/pytorch-lightning#4732",
    axes=((Axis.DP_REPLICATE,), (Axis.DP_SHARD,)),
    check="evaluation",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 4, "accum": 2}, "steps": 1},
    step=1,
)
