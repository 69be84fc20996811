"""A collective whose result is known beforehand: does this machine reduce at all, and rightly?"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist


def main(payload: dict[str, Any]) -> None:
    """On every rank: sum 1, 2, ..., world over the ranks. Raises RuntimeError where the sum is another."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(init_method=os.environ.get("LAUNCH_INIT_METHOD", "env://"), rank=rank, world_size=world)
    try:
        device = torch.accelerator.current_accelerator() or torch.device("cpu")
        value = torch.full((1000,), rank + 1.0, device=device)
        dist.all_reduce(value)
        expected = world * (world + 1) / 2
        if not bool((value == expected).all()):
            raise RuntimeError(f"an all-reduce over {world} ranks gave {value[0].item()}, expected {expected}")
    finally:
        dist.destroy_process_group()
