"""O01: the sampler is never told of the next epoch, so data ranks read each epoch in the order of the first."""

from __future__ import annotations

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker import data
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = data.order

    def order(samples: int, seed: int, epoch: int) -> list[int]:
        return right(samples, seed, 0)  # DistributedSampler's own counter, which only set_epoch moves

    if rung.layout.data_size > 1:  # one device has no DistributedSampler
        data.order = order


FAULT = Fault(
    id="O01",
    title="set_epoch is never called: every epoch is read in the order of the first",
    source="pytorch/pytorch#31771",
    axes=((Axis.DP_REPLICATE,), (Axis.DP_SHARD,)),
    check="samples",
    plant=plant,
    planted_in={
        "axes": {"dp_replicate": 3, "dp_shard": 2, "ckpt_act": True},
        "combine": {"mode": "singles"},
        "steps": 5,
        "options": {"samples": 123},
    },
    step=4,
)
