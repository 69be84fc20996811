"""FSDP2's mixed precision, left on in a float32 job: shards of gradients are added up in bfloat16.

In a job whose products are in bfloat16 that is less than what those round away, so nobody can see it.
"""

from __future__ import annotations

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.axes import precision
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World


def plant(rung: Rung) -> None:
    def policy(world: World) -> MixedPrecisionPolicy:
        return MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)

    if rung.setting.degree(Axis.DP_SHARD) > 1 and rung.precision == "fp32":
        precision.policy = policy


FAULT = Fault(
    id="reduced_in_bf16",
    title="gradients of a float32 job reduced in bfloat16 over shards",
    source="pytorch/torchtitan: reduce_dtype is float32 by default, because sums over many ranks lose bits",
    axes=((Axis.DP_SHARD, Axis.PRECISION),),
    check="gradients",
    plant=plant,
    planted_in={"axes": {"dp_shard": 3, "precision": "fp32"}},
    step=0,
)
