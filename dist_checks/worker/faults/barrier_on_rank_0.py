"""O33: saving at the end has a barrier in it, and only rank 0 saves: it meets the next barrier of the others."""

from __future__ import annotations

import torch.distributed as dist

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker import mesh
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World


def plant(rung: Rung) -> None:
    stop = mesh.stop

    def save_checkpoint() -> None:
        dist.barrier()

    def save_and_stop(world: World) -> None:
        if world.rank == 0:
            save_checkpoint()
        stop(world)

    if rung.layout.world_size > 1:
        mesh.stop = save_and_stop


FAULT = Fault(
    id="O33",
    title="a barrier on rank 0 only, when training has ended",
    source="alan-turing-institute/autocast PR#386",
    axes=((Axis.DP_REPLICATE,), (Axis.DP_SHARD,), (Axis.TP,)),
    check="collectives",
    plant=plant,
    planted_in={
        "axes": {"dp_replicate": 3, "accum": 5},
        "steps": 2,
        "combine": {"mode": "singles"},
        "launch": {"stall": 10.0},
    },
    step=2,
)
