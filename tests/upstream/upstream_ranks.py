"""Ranks that do one thing with gloo, forked from a server that has torch imported, and what they return."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed.nn.functional"])


def _rank(function: Callable[[int], Any], folder: str, rank: int, size: int, environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    if environment:
        dist.set_debug_level_from_env()
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=timedelta(seconds=20)
    )
    try:
        found = function(rank)
    except RuntimeError as error:
        found = error.args[0]
    torch.save(found, f"{folder}/rank{rank}.pt")
    os._exit(0)  # peers that an error has parted would wait for each other


def run(function: Callable[[int], Any], folder: Path, *, size: int = 2, **environment: str) -> list[Any]:
    """What ``function(rank)`` returns on each of ``size`` ranks; the message where it raises RuntimeError; None where
    the process died."""
    processes = [
        _CONTEXT.Process(target=_rank, args=(function, str(folder), rank, size, environment), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode is not None, "it hangs"
    paths = [folder / f"rank{rank}.pt" for rank in range(size)]
    return [torch.load(path, weights_only=False) if path.exists() else None for path in paths]
