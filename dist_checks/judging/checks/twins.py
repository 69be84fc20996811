"""Does a rung that is run again give the same bits?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dist_checks.judging.logical import Ints, Records
from dist_checks.judging.seen import Seen
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView
from dist_checks.trace import BUCKETS, Kind

# In the order in which they come about within a step.
KINDS = (
    Kind.OUTPUT,
    Kind.OUTPUT_GRADIENT,
    Kind.SAMPLE_GRADIENT,
    Kind.GRADIENT,
    Kind.APPLIED,
    Kind.STATE,
    Kind.WEIGHT,
    Kind.BUFFER,
)

ROUNDING = 1e-2
"""Relative: atomics on accelerators add in another order each time (Dao-AILab/flash-attention#384), and differ by no
more than narrow numbers round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first digest that is not the same in two runs."""

    step: int
    order: int
    kind: Kind
    name: str
    rank: int
    distance: float
    """Relative."""
    count: int
    """Of all digests of the kind."""


def check(view: RungView) -> Iterator[Finding]:
    """In the same kind of process: else it is a race. In cold processes: else the launcher's warm ones change them."""
    writer = view.writer("twins")
    if view.rung.twin_of is None:
        yield writer.skipped("it repeats no other rung")
        return
    if view.repeated is None or not view.repeated.trace.ranks or not view.trace.ranks:
        who = view.rung.twin_of if view.trace.ranks else view.rung.id
        yield writer.unseen(f"{who} left no trace")
        return
    compared, differences = 0, list[Difference]()
    for order, kind in enumerate(KINDS):
        count, different = _differences(view.own, view.repeated, kind, order)
        compared += count
        differences += different
    if not compared and view.log_only:
        yield writer.skipped("nothing that was saved could be compared bit for bit")
        return
    if not compared:
        yield writer.unseen(f"no digest was recorded by both {view.rung.id} and {view.rung.twin_of}")
        return
    if not differences:
        yield writer.passed(f"{compared} digests are those of {view.rung.twin_of}, bit for bit", observed=0, allowed=0)
        return
    first = min(differences, key=lambda difference: (difference.step, difference.order))
    device = str(view.trace.header.get("device", "cpu"))
    message = (
        f"differs in bits from {view.rung.twin_of}, first in {first.kind.value} {first.name} of rank {first.rank} at "
        f"step {first.step}: {first.distance:.1e} apart"
    )
    fields = {
        "step": first.step,
        "tensor": first.name,
        "ranks": (first.rank,),
        "observed": first.distance,
        "allowed": 0.0,
    }
    if not device.startswith("cpu") and first.distance <= ROUNDING:
        yield writer.passed(f"{message}: not deterministic on {device}, within rounding", **fields)
    elif not view.rung.cold:
        yield writer.failed(f"{message}. The same rung, run again the same way: a race", **fields, blames=Blamed.RACE)
    elif view.others_repeat:
        yield writer.failed(
            f"{message}. Warm reruns repeat their bits, new processes do not: the launcher's forked ranks compute "
            "something else",
            **fields,
            blames=Blamed.LAUNCHER,
        )
    elif view.others_repeat is None:
        yield writer.unseen(f"{message}. Whether it ever repeats its bits was not tried", **fields)
    else:
        yield writer.failed(
            f"{message}. Warm reruns do not repeat their bits either: a race", **fields, blames=Blamed.RACE
        )


def _differences(own: Seen, other: Seen, kind: Kind, order: int) -> tuple[int, list[Difference]]:
    """(digests of ``kind`` in both runs, the first that differs)."""
    a, b = own.records(kind), other.records(kind)
    if not len(a) or not len(b):
        return 0, []
    left, right = _common(a, b)
    bad = np.flatnonzero(a.fingerprint[left] != b.fingerprint[right])
    if not bad.size:
        return len(left), []
    # Of the earliest step, the first tensor as recorded.
    at = int(bad[np.lexsort((a.rank[left[bad]], a.tensor[left[bad]], a.step[left[bad]]))[0]])
    one, two = int(left[at]), int(right[at])
    x, y = _sketch(own, a, one), _sketch(other, b, two)
    with np.errstate(invalid="ignore", over="ignore"):
        norm, distance = float(np.linalg.norm(y)), float(np.linalg.norm(x - y))
    return len(left), [
        Difference(
            step=int(a.step[one]),
            order=order,
            kind=kind,
            name=a.names[a.tensor[one]],
            rank=int(a.rank[one]),
            distance=distance / norm if norm else distance,
            count=len(bad),
        )
    ]


def _common(a: Records, b: Records) -> tuple[Ints, Ints]:
    """Rows of the same rank, tensor, step and item in both."""
    number = {name: at for at, name in enumerate(b.names)}
    tensors = np.array([number.get(name, -1) for name in a.names], np.int64)
    mine = np.stack([a.rank, tensors[a.tensor], a.step, a.item], axis=1)
    theirs = np.stack([b.rank, b.tensor, b.step, b.item], axis=1)
    _, codes = np.unique(np.concatenate([mine, theirs]), axis=0, return_inverse=True)
    codes = codes.reshape(-1)
    # A tensor that a rank holds in several parts, or a sample that it reads twice, is compared once.
    _, left, right = np.intersect1d(codes[: len(a)], codes[len(a) :], return_indices=True)
    return left.astype(np.int64), right.astype(np.int64)


def _sketch(seen: Seen, given: Records, row: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    taken = seen.trace.by_rank[int(given.rank[row])].digests.take(given.record[row : row + 1])
    sketch: np.ndarray[tuple[int], np.dtype[np.float64]] = taken["sketch"].reshape(BUCKETS)
    return sketch
