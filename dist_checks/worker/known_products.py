"""Matrix products and sums whose bits are known, or at least the same on all hosts of one kind."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

SIZES = ((64, 64), (257, 129), (512, 1024))
DTYPES = (torch.float64, torch.float32, torch.bfloat16)


def main(payload: Mapping[str, Any]) -> None:
    """On every rank: writes ``bits-<rank>.json`` with what this host computes; with several ranks their sums, too.

    Raises RuntimeError where a result that is known exactly is another one.
    """
    if "fault" in payload:
        from dist_checks.worker import faults

        faults.plant(payload["fault"], None)  # type: ignore[arg-type]  # that of a node asks for no rung
    torch.set_num_threads(1)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = device or torch.device("cpu")
    exact, bits = products(device)
    if world > 1:
        bits = {"sum": reduced(rank, world, device)}
    found = {"host": os.environ.get("LAUNCH_HOST", platform.node()), "kind": kind(device), "exact": exact, "bits": bits}
    (Path(payload["folder"]) / f"bits-{rank}.json").write_text(json.dumps(found))


def products(device: torch.device) -> tuple[bool, dict[str, str]]:
    """Whether products of small whole numbers, which no rounding touches, are right; the bits of others, by name."""
    exact, bits = True, {}
    for rows, columns in SIZES:
        for dtype in DTYPES:
            layer = nn.Linear(columns, rows, bias=False, device=device, dtype=dtype)
            with torch.no_grad():
                layer.weight.copy_((torch.arange(rows * columns).view(rows, columns) % 3 - 1).to(dtype))
                whole = torch.eye(columns, device=device, dtype=dtype)
                exact &= torch.equal(layer(whole), layer.weight.T)
                layer.weight.copy_(_numbers(rows, columns).to(dtype))
                bits[f"{rows}x{columns} {str(dtype).removeprefix('torch.')}"] = _hash(
                    layer(_numbers(rows, columns).to(device, dtype))
                )
    return exact, bits


def reduced(rank: int, world: int, device: torch.device) -> str:
    """The bits of a sum over ranks. Raises RuntimeError where a sum that is known is another one."""
    dist.init_process_group(init_method=os.environ.get("LAUNCH_INIT_METHOD", "env://"), rank=rank, world_size=world)
    try:
        known = torch.full((1000,), rank + 1.0, device=device)
        dist.all_reduce(known)
        if not bool((known == world * (world + 1) / 2).all()):
            raise RuntimeError(f"an all-reduce gave {known[0].item()}, expected {world * (world + 1) / 2}")
        other = _numbers(100, 100).to(device, torch.float32) * (rank + 1)
        dist.all_reduce(other)
        return _hash(other)
    finally:
        dist.destroy_process_group()


def kind(device: torch.device) -> str:
    """What hosts have in common whose bits must agree."""
    if device.type != "cpu":
        return f"{torch.get_device_module(device).get_device_name(0)}, torch {torch.__version__}"
    model = "cpu"
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{model}, torch {torch.__version__}"


def _numbers(rows: int, columns: int) -> Tensor:
    """The same everywhere, without a random generator."""
    return torch.sin(torch.arange(rows * columns, dtype=torch.float64) * 0.7).view(rows, columns)


def _hash(values: Tensor) -> str:
    return hashlib.sha256(bytes(values.detach().cpu().contiguous().view(torch.uint8).flatten().tolist())).hexdigest()[
        :16
    ]
