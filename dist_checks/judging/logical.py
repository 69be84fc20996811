"""The digests of full tensors, from those of the parts that the ranks hold: nobody ever gathered a tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dist_checks.extent import Extent, Tiling, tile
from dist_checks.judging.reading import Trace
from dist_checks.trace import BUCKETS, Entry, Kind

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Part(NamedTuple):
    """What replicas have in common: two ranks that hold the same part of a tensor must hold the same bits."""

    extent: Extent
    coordinates: tuple[int, ...]
    """Where the holder stands on the axes over which the part is a partial sum: those are pieces, not replicas."""


class Key(NamedTuple):
    """One tensor at one moment."""

    name: str
    step: int
    item: int


@dataclass(frozen=True)
class Records:
    """All digests of one kind of all ranks, sorted by tensor, step, item, part and rank. Columns of equal length."""

    names: tuple[str, ...]
    """In the order in which they were first recorded, which for gradients and weights is that of the model."""
    parts: tuple[tuple[Part, ...], ...]
    """For each name, its distinct parts."""
    dtypes: tuple[str, ...]
    tensor: Ints
    """Index into names."""
    step: Ints
    item: Ints
    part: Ints
    """Index into ``parts[tensor]``."""
    rank: Ints
    record: Ints
    """Position in the file of the rank."""
    fingerprint: NDArray[np.uint64]

    def __len__(self) -> int:
        return len(self.tensor)

    @cached_property
    def full(self) -> Ints:
        """For each record, which full tensor (of Full's rows) it belongs to."""
        return np.cumsum(self._new_full) - 1

    @cached_property
    def _new_full(self) -> NDArray[np.bool_]:
        return _changes(self.tensor, self.step, self.item)

    @cached_property
    def new_part(self) -> NDArray[np.bool_]:
        """True at the first holder of each part; the records up to the next one are its replicas."""
        return self._new_full | _changes(self.part)

    @cached_property
    def starts(self) -> Ints:
        """First record of each full tensor."""
        return np.flatnonzero(self._new_full)


def _changes(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    new = np.zeros(len(columns[0]), bool)
    new[:1] = True
    for column in columns:
        new[1:] |= column[1:] != column[:-1]
    return new


def records(trace: Trace, kind: Kind) -> Records:
    """Everything of ``kind`` in the trace."""
    names: dict[str, int] = {}
    dtypes: list[str] = []
    parts: list[dict[tuple[int, tuple[int, ...]], int]] = []
    found: list[list[Part]] = []
    regions: dict[int, int] = {}  # id of an extent (they are shared by all ranks) -> number of its region
    numbers: dict[Any, int] = {}
    columns: list[tuple[NDArray[Any], ...]] = []

    def part_of(entry: Entry, coordinates: dict[str, int], copied: Mapping[str, str]) -> tuple[int, int]:
        # A copy of a tied parameter that another stage of a pipeline holds, and its "<parameter>/<state>".
        name, slash, state = entry.name.partition("/")
        tensor = names.setdefault(f"{copied.get(name, name)}{slash}{state}", len(names))
        if tensor == len(parts):
            parts.append({})
            found.append([])
            dtypes.append(entry.dtype)
        region = regions.get(id(entry.extent))
        if region is None:
            region = numbers.setdefault((entry.extent.shape, entry.extent.region), len(numbers))
            regions[id(entry.extent)] = region
        at = tuple(coordinates.get(axis, 0) for axis in entry.extent.partial)
        part = parts[tensor].setdefault((region, at), len(parts[tensor]))
        if part == len(found[tensor]):
            found[tensor].append(Part(entry.extent, at))
        return tensor, part

    for rank in trace.ranks:
        coordinates = rank.header.get("coordinates", {})
        copied = rank.copies
        mine = [
            (index, part_of(entry, coordinates, copied)) for index, entry in rank.entries.items() if entry.kind is kind
        ]
        if not mine:
            continue
        lookup = np.full((max(rank.entries) + 1, 2), -1)
        for index, (tensor, part) in mine:
            lookup[index] = tensor, part
        at = np.flatnonzero(lookup[rank.digests.entry, 0] >= 0)
        tensor_part = lookup[rank.digests.entry[at]]
        columns.append(
            (
                tensor_part[:, 0],
                rank.digests.step[at].astype(np.int64),
                rank.digests.item[at],
                tensor_part[:, 1],
                np.full(len(at), rank.rank),
                at,
                rank.digests.fingerprint[at],
            )
        )
    if not columns:
        none = np.zeros(0, np.int64)
        columns.append((none, none, none, none, none, none, np.zeros(0, np.uint64)))
    joined = [np.concatenate(column) for column in zip(*columns, strict=True)]
    # The columns are already in the order of ranks, and lexsort is stable.
    order = np.lexsort((joined[3], joined[2], joined[1], joined[0]))
    tensors, steps, items, which, ranks, positions, fingerprints = (column[order] for column in joined)
    return Records(
        names=tuple(names),
        parts=tuple(map(tuple, found)),
        dtypes=tuple(dtypes),
        tensor=tensors,
        step=steps,
        item=items,
        part=which,
        rank=ranks,
        record=positions,
        fingerprint=fingerprints,
    )


@dataclass(frozen=True)
class Full:
    """Digests of full tensors of one kind, one a row, ordered by tensor, step and item."""

    names: tuple[str, ...]
    tensor: Ints
    step: Ints
    item: Ints
    fingerprint: NDArray[np.uint64]
    """Of no meaning where ``partial``."""
    elements: Ints
    nonfinite: Ints
    sum_squares: Floats
    """Where ``partial``, an estimate (|sketch|^2, unbiased, 10 % or so off)."""
    sketch: Floats
    """(rows, BUCKETS)"""
    partial: NDArray[np.bool_]
    """Added up from partial sums."""
    tiling: tuple[Tiling | str, ...]
    """How the recorded parts cover the tensor; a string where they cannot be laid side by side, saying why."""
    complete: NDArray[np.bool_]
    """All parts are there, once."""
    dtypes: tuple[str, ...]
    """Of each name, as the first rank that recorded it holds it."""

    def __len__(self) -> int:
        return len(self.tensor)

    def key(self, row: int) -> Key:
        return Key(self.names[self.tensor[row]], int(self.step[row]), int(self.item[row]))

    @cached_property
    def rows(self) -> dict[Key, int]:
        columns = zip(self.tensor.tolist(), self.step.tolist(), self.item.tolist(), strict=True)
        return {Key(self.names[tensor], step, item): row for row, (tensor, step, item) in enumerate(columns)}

    @cached_property
    def steps(self) -> tuple[int, ...]:
        return tuple(np.unique(self.step).tolist())

    @property
    def norm(self) -> Floats:
        return np.sqrt(self.sum_squares)

    def at(self, step: int) -> Ints:
        """Rows of one step, in the order of names."""
        return np.flatnonzero(self.step == step)


def full(trace: Trace, given: Records, degrees: dict[str, int]) -> Full:
    """Adds up each part once: one of its replicas, all shards, and all pieces of partial sums.

    ``degrees`` of the axes say how many pieces a partial sum over them has.
    """
    count = len(given.starts)
    sums = _sums(trace, given, count)
    tensors = given.tensor[given.starts]
    tiling, complete, partial = _covers(given, degrees)
    sum_squares = np.where(partial, np.square(sums.sketch).sum(1), sums.sum_squares)
    return Full(
        names=given.names,
        tensor=tensors,
        step=given.step[given.starts],
        item=given.item[given.starts],
        fingerprint=sums.fingerprint,
        elements=sums.elements,
        nonfinite=sums.nonfinite,
        sum_squares=sum_squares,
        sketch=sums.sketch,
        partial=partial,
        tiling=tiling,
        complete=complete,
        dtypes=given.dtypes,
    )


class _Sums(NamedTuple):
    fingerprint: NDArray[np.uint64]
    elements: Ints
    nonfinite: Ints
    sum_squares: Floats
    sketch: Floats


def _sums(trace: Trace, given: Records, count: int) -> _Sums:
    out = _Sums(
        np.zeros(count, np.uint64),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count),
        np.zeros((count, BUCKETS)),
    )
    if not count:
        return out
    chosen = np.flatnonzero(given.new_part)
    chosen = chosen[np.argsort(given.rank[chosen], kind="stable")]
    ranks, starts = np.unique(given.rank[chosen], return_index=True)
    # A sum that overflows is not finite, and that is found where numbers are compared.
    with np.errstate(over="ignore", invalid="ignore"):
        for rank, mine in zip(ranks.tolist(), np.split(chosen, starts[1:]), strict=True):
            data = trace.by_rank[rank].digests.take(given.record[mine])
            rows = given.full[mine]
            if (np.diff(rows) > 0).all():
                for total, name in zip(out, _Sums._fields, strict=True):
                    total[rows] += data[name]
            else:  # a rank that holds several parts of one tensor
                for total, name in zip(out, _Sums._fields, strict=True):
                    np.add.at(total, rows, data[name])
    return out


def _covers(
    given: Records, degrees: dict[str, int]
) -> tuple[tuple[Tiling | str, ...], NDArray[np.bool_], NDArray[np.bool_]]:
    """For each full tensor: its tiling, whether it is complete, and whether it is made of partial sums."""
    known: dict[tuple[int, bytes], tuple[Tiling | str, bool, bool]] = {}
    out = []
    for tensor, parts in _parts_of_each(given):
        key = (tensor, parts.tobytes())
        if key not in known:
            known[key] = _cover([given.parts[tensor][part] for part in parts.tolist()], degrees)
        out.append(known[key])
    return (
        tuple(tiling for tiling, _, _ in out),
        np.array([complete for _, complete, _ in out], bool),
        np.array([partial for _, _, partial in out], bool),
    )


def _parts_of_each(given: Records) -> Iterator[tuple[int, Ints]]:
    firsts = np.flatnonzero(given.new_part)
    parts, owner = given.part[firsts], given.full[firsts]
    bounds = np.searchsorted(owner, np.arange(len(given.starts) + 1)).tolist()
    for tensor, start, stop in zip(given.tensor[given.starts].tolist(), bounds, bounds[1:], strict=False):
        yield tensor, parts[start:stop]


def _cover(parts: list[Part], degrees: dict[str, int]) -> tuple[Tiling | str, bool, bool]:
    shapes = {part.extent.shape for part in parts}
    if len(shapes) > 1:
        return f"ranks disagree about its shape: {', '.join(map(str, sorted(shapes)))}", False, False
    regions: dict[Any, list[Part]] = {}
    for part in parts:
        regions.setdefault(part.extent.region, []).append(part)
    axes = {part.extent.partial for part in parts}
    if len(axes) > 1:
        return "on some ranks it is a partial sum, on others it is not", False, False
    pieces = math.prod(degrees.get(axis, 1) for axis in next(iter(axes)))
    try:
        tiling = tile(next(iter(shapes)), [same[0].extent for same in regions.values()])
    except ValueError as error:
        return str(error), False, pieces > 1
    whole = all(len(same) == pieces for same in regions.values())
    return tiling, tiling.exact and whole, pieces > 1
