"""What a trace says of how it came about: the settings in which two runs may differ."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any

from dist_checks.axes import Axis
from dist_checks.judging.reading import Trace

NOT_SETTINGS = frozenset({"parameters", "initial_lr"})
"""Of an optimizer's group."""


SEEN = (
    "first batch",
    "micro-batches",
    "samples of a step",
    "numbers",
    "attention",
    "activation checkpointing",
    "optimizer kernels",
)
"""What may not have been seen in one of two traces: nobody knows then whether it differs."""


def degrees(trace: Trace) -> dict[str, int]:
    """Of each axis of the grid of ranks, from where they say that they stand."""
    out: dict[str, int] = {}
    for rank in trace.ranks:
        for axis, at in (rank.header.get("coordinates") or {}).items():
            out[axis] = max(out.get(axis, 1), int(at) + 1)
    return out


def settings(trace: Trace) -> dict[str, Any]:
    """By name, as far as the ranks have written them down; what nobody knows is None."""
    header = trace.header
    first = next((rank.steps[min(rank.steps)] for rank in trace.ranks if rank.steps), {})
    evidence: Mapping[str, Any] = trace.ranks[0].evidence if trace.ranks else {}
    grid = {axis: degree for axis, degree in degrees(trace).items() if degree > 1}
    out: dict[str, Any] = {axis.value: grid.get(axis.value, 1) for axis in Axis if axis.value in grid}
    if not grid:
        out["ranks"] = len(trace.ranks)
    out["device"] = str(header.get("device", "cpu")).partition(":")[0]
    out["hosts"] = ", ".join(sorted(set(trace.hosts.values())))
    for name in ("versions", "options", "train"):
        out |= {f"{name}.{key}": value for key, value in (header.get(name) or {}).items()}
    for index, group in enumerate(header.get("optimizer") or ()):
        where = f"optimizer[{index}]"
        out |= {f"{where}.{key}": value for key, value in group.items() if key not in NOT_SETTINGS}
    micro = first.get("micro_batches")
    out["micro-batches"] = len(micro) if micro else None
    out["samples of a step"] = _samples(trace)
    out["first batch"] = None if (batch := first_batch(trace)) is None else f"{batch:08x}"
    out["clip"] = first.get("clip")
    out["loss scale"] = first.get("loss_scale")
    out["numbers"] = ", ".join(evidence.get("matmul_dtypes") or ()) or None
    runs = evidence.get("block_runs") or {}
    out["activation checkpointing"] = bool(runs.get("backward")) if runs.get("forward") else None
    out["compiled"] = bool((evidence.get("compiled") or {}).get("graphs"))
    out["optimizer kernels"] = ", ".join(evidence.get("optimizer_kernels") or ()) or None
    out["attention"] = ", ".join(evidence.get("attention") or ()) or None
    out["zero"] = evidence.get("zero_stage")
    out |= {f"env.{key}": value for key, value in (evidence.get("env") or {}).items()}
    return out


def _samples(trace: Trace) -> int | None:
    """Different ones that all ranks read together in the first step."""
    ids = {id for rank in trace.ranks if rank.steps for id in rank.steps[min(rank.steps)].get("ids") or ()}
    return len(ids) or None


def first_batch(trace: Trace) -> int | None:
    """A fingerprint of what the model receives first, in whatever layout: data pipelines change too. None where neither
    rung zero has looked at it, nor samples are known by what they are."""
    shown = [event for rank in trace.ranks for event in rank.observed if event.get("what") == "shown"]
    if shown:
        return zlib.crc32(repr(shown[0].get("rows")).encode())
    first = [rank.steps[min(rank.steps)] for rank in trace.ranks if rank.steps]
    if not first or any(event.get("ids_from") != "inputs" for event in first):
        return None
    return zlib.crc32(repr(sorted({id for event in first for id in event["ids"]})).encode())


def changed(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings that differ. An axis that only one of the two has is off, with degree 1, in the other."""
    axes = set(map(str, Axis))
    out: dict[str, tuple[Any, Any]] = {}
    for name in dict.fromkeys((*a, *b)):
        off = 1 if name in axes and name != Axis.ZERO else None
        one, other = a.get(name, off), b.get(name, off)
        if name == "ranks" and (name not in a or name not in b):
            continue  # the axes say it
        if one != other and not (name in SEEN and None in (one, other)):
            out[name] = one, other
    return out
