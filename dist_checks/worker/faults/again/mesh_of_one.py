"""O18 again: FSDP2 is handed a mesh of this rank alone, so everything is sharded over one rank."""

from __future__ import annotations

from collections.abc import Iterable

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.axes import dp_shard
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World


def plant(rung: Rung) -> None:
    def shard(modules: Iterable[nn.Module], world: World, *axes: Axis) -> None:
        alone, _ = dist.new_subgroups(group_size=1)  # type: ignore[no-untyped-call]
        mesh = DeviceMesh.from_group(alone, world.device.type)
        for module in modules:
            fully_shard(module, mesh=mesh)

    if rung.setting.degree(Axis.DP_SHARD) > 1:
        dp_shard.shard = shard


FAULT = Fault(
    id="O18-2",
    title="sharded over a mesh of one rank: gradients are reduced with nobody",
    source="verl-project/verl#7493",
    axes=((Axis.DP_SHARD,),),
    check="engaged",
    plant=plant,
    planted_in={"axes": {"dp_shard": 3, "accum": 5}, "combine": {"mode": "singles"}},
)
