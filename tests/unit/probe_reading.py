"""Reads back what a probe wrote, one rank at a time."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dist_checks.judging.reading import RankTrace, read
from dist_checks.trace import NO_ITEM, Entry, Kind, Values


class Found(NamedTuple):
    entry: Entry
    values: Values


class Key(NamedTuple):
    kind: Kind
    name: str
    step: int
    item: int = NO_ITEM


def rank_trace(folder: Path, rank: int = 0) -> RankTrace:
    trace = read(folder, 1)
    assert not trace.problems
    return trace.by_rank[rank]


def digests(trace: RankTrace) -> dict[Key, Found]:
    out = {}
    for record in trace.digests.take(slice(None)):  # type: ignore[arg-type]  # a slice indexes as well
        step, number, item, *numbers, sketch, _, _ = record.tolist()
        entry = trace.entries[number]
        out[Key(entry.kind, entry.name, step, item)] = Found(entry, Values._make((*numbers, tuple(sketch))))
    return out


def recorded(folder: Path, rank: int = 0) -> dict[Key, Found]:
    return digests(rank_trace(folder, rank))
