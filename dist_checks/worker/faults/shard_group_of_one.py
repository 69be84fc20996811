"""O18: FSDP is given a shard dimension of one rank: nothing is sharded, and gradients are reduced with nobody."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.axes import dp_shard
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World


def plant(rung: Rung) -> None:
    def shard(modules: Iterable[nn.Module], world: World, *axes: Axis) -> None:
        """As NO_SHARD does over a process group of one."""

    dp_shard.shard = shard


FAULT = Fault(
    id="O18",
    title="a shard dimension of 1 silently disables gradient synchronisation",
    source="verl-project/verl#7493",
    axes=((Axis.DP_SHARD,),),
    check="engaged",
    plant=plant,
)
