"""Counts what torch's flight recorder has seen of collectives; reading it takes no part in any."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import GroupName

RECORDERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""Of the other backends, and of nccl. JSON, because nothing that is read here is to be executed."""

LOOP = "loop"
"""Description of groups that a training loop has for itself: what is sent there is no work of an axis."""

Mark = Mapping[str, int]
"""For each recorder the number of its next record."""


def is_recording() -> bool:
    """A ring of TORCH_FR_BUFFER_SIZE entries, read when the first process group is made: the launcher sets it."""
    return dist.is_available() and int(os.environ.get("TORCH_FR_BUFFER_SIZE") or 0) > 0


def mark() -> Mark:
    """A moment from which on :func:`collectives` can count."""
    if not is_recording():
        return {}
    return {
        recorder: max((entry["record_id"] for entry in _entries(recorder)), default=-1) + 1 for recorder in RECORDERS
    }


def collectives(since: Mark | None = None) -> dict[str, dict[str, int]] | None:
    """``{axis: {operation: count}}`` since a mark, as far as the ring goes back; None where nothing is recorded.

    A group that no mesh dim describes is called by its ranks: ``ranks 0,1,2`` (one of the loop's own ``loop``). So is a
    mesh dim that spans the world, because it shares the group of all ranks.
    """
    if not is_recording():
        return None
    counts: dict[str, dict[str, int]] = {}
    for recorder in RECORDERS:
        for entry in _entries(recorder):
            if entry["record_id"] >= (since or {}).get(recorder, 0):
                # "gloo:all_reduce", "nccl:send 0->1"
                operation = str(entry["profiling_name"]).split(":", 1)[-1].split(" ", 1)[0]
                group = counts.setdefault(_group_name(*entry["process_group"]), {})
                group[operation] = group.get(operation, 0) + 1
    return counts


def _entries(recorder: str) -> Iterator[dict[str, Any]]:
    dump = getattr(torch._C._distributed_c10d, recorder, None)
    if dump is not None:
        yield from json.loads(dump(includeCollectives=True, onlyActive=False)).get("entries") or ()


def _group_name(name: str, description: str) -> str:
    if description.startswith("mesh_"):
        return description.removeprefix("mesh_")
    if description == LOOP:
        return description
    try:
        ranks = dist.get_process_group_ranks(torch._C._distributed_c10d._resolve_process_group(GroupName(name)))
    except (ValueError, RuntimeError, KeyError):  # the group has been destroyed
        return description or name
    return "ranks " + ",".join(map(str, ranks))
