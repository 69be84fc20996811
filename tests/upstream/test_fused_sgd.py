"""torch has fused AdamW for DTensors, and no fused SGD.

The plan refuses ``fused`` with ``train.optimizer = "sgd"`` and dp_shard, tp or ep (``dist_checks/refusals.py``).
"""

from __future__ import annotations

from pathlib import Path

import torch
import upstream_ranks
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh


def step(rank: int) -> dict[str, str]:
    """By optimizer, what its fused step says."""
    mesh = init_device_mesh("cpu", (1,))
    said = {}
    for optimizer in (torch.optim.AdamW, torch.optim.SGD):
        parameter = nn.Parameter(distribute_tensor(torch.ones(2, 2), mesh, [Shard(0)]))
        parameter.grad = distribute_tensor(torch.ones(2, 2), mesh, [Shard(0)])
        try:
            optimizer([parameter], lr=0.1, fused=True).step()
            said[optimizer.__name__] = "stepped"
        except NotImplementedError as error:
            said[optimizer.__name__] = str(error)
    return said


def test_fused_sgd_has_no_strategy(tmp_path: Path) -> None:
    [said] = upstream_ranks.run(step, tmp_path, size=1)
    assert said["AdamW"] == "stepped"
    assert "_fused_sgd_.default does not have a sharding strategy" in said["SGD"]
