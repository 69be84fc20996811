"""Keys and values gathered by torch.distributed.nn.functional.all_gather, whose gradient is wrong on gloo."""

from __future__ import annotations

import torch
import torch.distributed.nn.functional
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from dist_checks.axes import Axis
from dist_checks.recipes.base import Attend
from dist_checks.rung import Rung
from dist_checks.worker.axes import cp
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def gathering(mesh: DeviceMesh, start: int) -> Attend:
        def gather(x: Tensor) -> Tensor:
            parts = torch.distributed.nn.functional.all_gather(x, group=mesh.get_group())  # type: ignore[no-untyped-call]
            return torch.cat(parts, dim=-2)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            keys, values = gather(k), gather(v)
            return F.scaled_dot_product_attention(q, keys, values, attn_mask=cp.before(start, q, keys))

        return attend

    cp.gathering = gathering


FAULT = Fault(
    id="nn_all_gather",
    title="the gradient of a gather, scattered into tensors that are not contiguous",
    source="torch 2.13: tests/upstream/test_nn_all_gather.py",
    axes=((Axis.CP,),),
    check="forward",
    plant=plant,
    planted_in={"axes": {"cp": 2, "accum": 5}, "combine": {"mode": "singles"}},
    step=0,
)
