"""O21, emulated: a buffer that is being reduced is overwritten before the reduction has read all of it."""

from __future__ import annotations

import os
import struct
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker.axes import dp_replicate
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.mesh import World

FROM = 2
"""The step from which on buffers are recycled too early."""


def plant(rung: Rung) -> None:
    right = dp_replicate.apply
    calls = 0

    def reduce(group: dist.ProcessGroup, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        nonlocal calls
        buffer: torch.Tensor = bucket.buffer()
        if calls >= FROM:
            # What another stream leaves there is no function of the seed.
            (at, noise) = struct.unpack("<Ii", os.urandom(8))
            buffer[at % buffer.numel()] += noise / 2**31
        calls += bucket.is_last()
        buffer.div_(group.size())
        work = dist.all_reduce(buffer, group=group, async_op=True)
        assert work is not None
        future: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda done: done.value()[0])
        return future

    reduce.__annotations__.clear()  # DDP takes none but its own, which are not exported

    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        wrapped = right(model, recipe, world)
        if isinstance(wrapped, DistributedDataParallel):
            wrapped.register_comm_hook(wrapped.process_group, reduce)
        return wrapped

    if Axis.DP_REPLICATE in rung.setting:
        dp_replicate.apply = apply


FAULT = Fault(
    id="O21",
    title="a buffer overwritten while it is reduced: another result in every run",
    source="deepspeedai/DeepSpeed PR#7965, emulated",
    axes=(),
    blamed="race",
    check="twins",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "accum": 5}, "steps": 4},
    step=2,
)
