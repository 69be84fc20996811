"""O04: a stream that is split over ranks already is split again by the wrapper."""

from __future__ import annotations

from collections.abc import Sequence

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker import data
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = data.part

    def part(ids: Sequence[int], data_rank: int, data_size: int) -> list[int]:
        return right(right(ids, data_rank, data_size), data_rank, data_size)

    data.part = part


FAULT = Fault(
    id="O04",
    title="samples split over ranks twice: each rank reads 1/N of its part",
    source="huggingface/accelerate#3547, PR#4276",
    axes=((Axis.DP_REPLICATE,), (Axis.DP_SHARD,)),
    check="samples",
    plant=plant,
    planted_in={
        "axes": {"dp_replicate": 3, "dp_shard": 2, "ckpt_act": True},
        "combine": {"mode": "singles"},
        "options": {"samples": 124},
    },
    step=0,
)
