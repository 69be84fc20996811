"""What torch's flight recorder knows of collectives, with where each was called; reading it takes part in none."""

from __future__ import annotations

import io
import os
import pickle
import sysconfig
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import GroupName

RECORDERS = ("_dump_fr_trace", "_dump_nccl_trace")
"""Of the other backends, and of nccl."""

_LIBRARIES = (
    os.path.dirname(torch.__file__) + os.sep,
    sysconfig.get_path("stdlib") + os.sep,
    "<frozen",
)
_OURS = os.path.join(sysconfig.get_path("stdlib"), "site-packages") + os.sep
"""The standard library's folder holds the installed packages too, and those are not of the standard library."""

Signature = tuple[tuple[str, tuple[int, ...]], ...]
"""(dtype, shape) of each tensor that goes in, or comes out."""


class Collective(NamedTuple):
    """One call of a collective, or of a send or receive, by this rank."""

    group: str
    """Torch's own name of the process group, the same on all its ranks."""
    description: str
    """``mesh_tp`` for a dim of a mesh."""
    sequence: int
    """Which of its group's collectives it is, from 1; of the sends and receives, where it is one."""
    operation: str
    inputs: Signature
    outputs: Signature
    site: str
    """``sum_over_data (mesh.py:122), from step (loop.py:60)``; empty where the recorder has no stack."""
    at: int
    """When it was called, in nanoseconds of this host's wall clock."""
    pending: bool
    """It has not ended yet."""


def is_recording() -> bool:
    """A ring of TORCH_FR_BUFFER_SIZE entries, read when the first process group is made: the launcher sets it."""
    return dist.is_available() and ring_size() > 0


def ring_size() -> int:
    return int(os.environ.get("TORCH_FR_BUFFER_SIZE") or 0)


def collectives(since: dict[str, int], pending: dict[tuple[str, int], Collective]) -> Iterator[tuple[Collective, int]]:
    """(collective, how many before it have left the ring unread) for each one that is new since the last call, and for
    each that was pending then and is not any more. ``since`` and ``pending`` are the state between two calls.
    """
    for recorder in RECORDERS:
        for entry in _entries(recorder):
            number, key = int(entry["record_id"]), (recorder, int(entry["record_id"]))
            lost = max(number - since.get(recorder, 0), 0)
            if number < since.get(recorder, 0) and (key not in pending or not entry["retired"]):
                continue
            since[recorder] = max(since.get(recorder, 0), number + 1)
            found = pending.pop(key)._replace(pending=False) if key in pending else _collective(entry)
            if found.pending:
                pending[key] = found
            yield found, lost


class _Plain(pickle.Unpickler):
    """The recorder's JSON has no stacks, so its other format is read: in the process that has just made it, and
    nothing but numbers, texts, lists and tables of them. What is written to files is JSON."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"the flight recorder holds {module}.{name}, which is no plain value")


def _entries(recorder: str) -> Sequence[dict[str, Any]]:
    dump = getattr(torch._C._distributed_c10d, recorder, None)
    if dump is None:
        return ()
    data = dump(includeCollectives=True, includeStackTraces=True, onlyActive=False)
    found: Sequence[dict[str, Any]] = _Plain(io.BytesIO(data)).load().get("entries") or ()
    return found


def _collective(entry: dict[str, Any]) -> Collective:
    group, description = entry["process_group"]
    # "gloo:all_reduce", "nccl:send 0->1"
    operation = str(entry["profiling_name"]).split(":", 1)[-1].split(" ", 1)[0]
    frames = [(frame["name"], frame["filename"], frame["line"]) for frame in entry.get("frames") or ()]
    return Collective(
        group=str(group),
        description=str(description),
        sequence=int(entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]),
        operation=operation,
        inputs=_signature(entry["input_dtypes"], entry["input_sizes"]),
        outputs=_signature(entry["output_dtypes"], entry["output_sizes"]),
        site=site(frames),
        at=int(entry["time_created_ns"]),
        pending=not entry["retired"],
    )


def _signature(dtypes: Sequence[str], sizes: Sequence[Sequence[int]]) -> Signature:
    names = [str(dtype).lower() for dtype in dtypes] or [""] * len(sizes)
    return tuple((name, tuple(size)) for name, size in zip(names, sizes, strict=False))


def site(frames: Sequence[tuple[str, str, int]]) -> str:
    """Of (function, file, line) from the innermost out: the two innermost that are neither torch's nor Python's."""
    outside = [frame for frame in frames if not _is_library(frame[1])] or list(frames[:1])
    return ", from ".join(f"{name} ({os.path.basename(path)}:{line})" for name, path, line in outside[:2])


def _is_library(path: str) -> bool:
    if path.startswith(_LIBRARIES[0]) or not path.startswith(_OURS):
        return path.startswith(_LIBRARIES)
    return False


def frames_of(frame: FrameType | None) -> list[tuple[str, str, int]]:
    """What :func:`site` takes, of a running thread."""
    found = []
    while frame is not None:
        found.append((frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return found


def ranks_of(group: str) -> list[int] | None:
    """The ranks of a process group of this rank, by torch's name of it; None where it does not exist (any more)."""
    try:
        return dist.get_process_group_ranks(torch._C._distributed_c10d._resolve_process_group(GroupName(group)))
    except (ValueError, RuntimeError, KeyError):
        return None
