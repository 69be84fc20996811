"""What was seen of the axes in the first step: proof that tensor cores, collectives and shards were really in use."""

from __future__ import annotations

import json
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import GroupName
from torch.utils.hooks import RemovableHandle

from dist_checks.probe.header import dtype_name

RECORDERS = ("_dump_fr_trace_json", "_dump_nccl_trace_json")
"""The flight recorders of torch: one for the other backends, one for nccl."""


class Evidence:
    """On every rank: watches the first step; :meth:`fields` are those of the evidence event."""

    def __init__(self, model: nn.Module) -> None:
        self._dtypes: set[str] = set()
        self._unrecorded: dict[tuple[str, str], str] = {}
        self._handles: list[RemovableHandle] = [
            module.register_forward_hook(self._saw_product)
            for module in model.modules()
            if isinstance(module, nn.Linear)
        ]

    def _saw_product(self, module: nn.Module, args: Any, output: object) -> None:
        if isinstance(output, Tensor):
            self._dtypes.add(dtype_name(output.dtype))

    def unrecorded(self, kind: str, name: str, reason: str) -> None:
        """A tensor that the probe could not read: said once, so that its absence is not taken for a fault."""
        self._unrecorded.setdefault((kind, name), reason)

    def stop(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def fields(self) -> dict[str, Any]:
        return {
            "matmul_dtypes": sorted(self._dtypes),
            "collectives": collectives(),
            "unrecorded": [
                {"kind": kind, "name": name, "reason": reason} for (kind, name), reason in self._unrecorded.items()
            ],
        }


def collectives() -> dict[str, dict[str, int]] | None:
    """Operations counted by torch's flight recorder, by axis or else by the ranks of the group; None where it is off.

    The recorder is a ring of TORCH_FR_BUFFER_SIZE entries, read at the first use of a process group: the launcher sets
    it. Reading it takes no part in any collective.
    """
    if int(os.environ.get("TORCH_FR_BUFFER_SIZE") or 0) <= 0 or not dist.is_available():
        return None
    counts: dict[str, dict[str, int]] = {}
    for recorder in RECORDERS:
        dump = getattr(torch._C._distributed_c10d, recorder, None)
        if dump is None:
            continue
        for entry in json.loads(dump(includeCollectives=True, onlyActive=False)).get("entries") or ():
            # "gloo:all_reduce", "nccl:send 0->1"
            operation = str(entry["profiling_name"]).split(":", 1)[-1].split(" ", 1)[0]
            group = counts.setdefault(_group_name(*entry["process_group"]), {})
            group[operation] = group.get(operation, 0) + 1
    return counts


def _group_name(name: str, description: str) -> str:
    """``tp`` for the group of the mesh dim of that name; ``ranks 0,1,2`` for one that no mesh dim describes."""
    if description.startswith("mesh_"):
        return description.removeprefix("mesh_")
    try:
        ranks = dist.get_process_group_ranks(torch._C._distributed_c10d._resolve_process_group(GroupName(name)))
    except (ValueError, RuntimeError, KeyError):  # the group has been destroyed
        return description or name
    return "ranks " + ",".join(map(str, ranks))
