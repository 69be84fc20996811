"""O17: each replica is made from a seed of its own, and FSDP does not broadcast."""

from __future__ import annotations

import os
from dataclasses import replace

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker import rng
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = rng.seed_model
    replica = rung.layout.coordinates(int(os.environ.get("RANK", "0")))[Axis.DP_REPLICATE]

    def seed_model(rung: Rung) -> None:
        right(replace(rung, seed=rung.seed + replica))

    rng.seed_model = seed_model


FAULT = Fault(
    id="O17",
    title="replicas made from different seeds: DDP broadcasts, HSDP does not",
    source="pytorch/torchtitan#166",
    axes=((Axis.DP_REPLICATE, Axis.DP_SHARD),),
    check="replicas",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "dp_shard": 2}},
    step=-1,
)
