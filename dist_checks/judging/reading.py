"""Reads what the ranks of one rung left behind, however they ended."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dist_checks.extent import Extent
from dist_checks.judging.files import Part, parts
from dist_checks.trace import (
    BUCKETS,
    RECORD_BYTES,
    SCHEMA,
    Chain,
    Entry,
    Kind,
    Unsigned,
    digests_path,
    events_path,
    parse,
)

RECORD = np.dtype(
    [
        ("step", "<i4"),
        ("entry", "<i4"),
        ("item", "<i8"),
        ("fingerprint", "<u8"),
        ("elements", "<i8"),
        ("zeros", "<i8"),
        ("nonfinite", "<i8"),
        ("sum_squares", "<f8"),
        ("largest", "<f8"),
        ("sketch", "<f8", (BUCKETS,)),
        ("checksum", "<u4"),
        ("unused", "<u4"),
    ]
)
assert RECORD.itemsize == RECORD_BYTES
_BODY_BYTES = RECORD_BYTES - 8

Records = NDArray[np.void]
"""One-dimensional, of dtype RECORD."""

Step = Mapping[str, Any]
"""The fields of a ``step`` event, as docs/trace.md lists them."""


class TraceError(ValueError):
    """A file is no trace, or one of another version: nothing in it can be judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Digests:
    """The digests of one rank: what they are is held in memory, what they say stays in the file until it is asked for.

    A file is mapped only while it is read: a thousand ranks would use up the file descriptors of a process.
    """

    part: Part
    step: NDArray[np.int32]
    entry: NDArray[np.int32]
    item: NDArray[np.int64]
    fingerprint: NDArray[np.uint64]

    @classmethod
    def of(cls, part: Part, records: Records) -> Digests:
        def column(name: str) -> NDArray[Any]:
            return np.array(records[name])

        return cls(
            part=part,
            step=column("step"),
            entry=column("entry"),
            item=column("item"),
            fingerprint=column("fingerprint"),
        )

    def __len__(self) -> int:
        return len(self.step)

    def take(self, indices: NDArray[np.int64]) -> Records:
        """Copies of the records at ``indices``."""
        return np.array(_map(self.part, len(self))[indices])


@dataclass(frozen=True, kw_only=True)
class RankTrace:
    """What one rank recorded."""

    rank: int
    header: Mapping[str, Any]
    entries: Mapping[int, Entry]
    """By index, in the order in which they were announced."""
    steps: Mapping[int, Step]
    evidence: Mapping[str, Any]
    digests: Digests
    ended: bool
    """The rank said that it had come to its end."""
    problems: tuple[str, ...]
    """A sentence for each place where a file is cut or damaged; what stands before it is read."""
    routing: tuple[Mapping[str, Any], ...] = ()
    """The ``routing`` events."""
    loaded: Mapping[str, Any] | None = None
    """The ``loaded`` event, of a process that goes on where others have stopped."""
    saved: Mapping[str, Any] | None = None
    """The ``saved`` event, of a process that others go on from."""
    evaluation: Mapping[str, Any] | None = None
    """The ``evaluation`` event."""
    observed: tuple[Mapping[str, Any], ...] = ()
    """The ``observed`` events."""
    read: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """The ``read`` events, by step: of one that is passed over in production, its samples."""

    @cached_property
    def copies(self) -> dict[str, str]:
        """Parameters here that are copies of one that another rank has under its first name: that name."""
        rows = self.header.get("parameters") or ()
        here = {str(row["name"]) for row in rows}
        return {str(row["name"]): str(row["tied"]) for row in rows if row.get("tied") and row["tied"] not in here}


@dataclass(frozen=True)
class Trace:
    """What the ranks of one rung recorded together, in ascending order of ranks."""

    folder: Path
    world_size: int
    """As planned."""
    ranks: tuple[RankTrace, ...]
    repeated: tuple[tuple[int, Mapping[str, Any]], ...] = ()
    """Rank and header of each further process that took itself for a rank that another one was."""
    placed: tuple[str, ...] = ()
    """Host of each rank, as the launcher has it; empty where it left no word."""

    @cached_property
    def missing(self) -> tuple[int, ...]:
        """Planned ranks that left no file, or a file without a header."""
        seen = {rank.rank for rank in self.ranks if rank.header}
        return tuple(rank for rank in range(self.world_size) if rank not in seen)

    @cached_property
    def problems(self) -> tuple[str, ...]:
        return tuple(problem for rank in self.ranks for problem in rank.problems)

    @cached_property
    def cut(self) -> str:
        """Why the trace does not hold everything, in words; empty where it does."""
        if not self.ranks and self.world_size > 1:
            return "no rank left a trace"
        damaged = {rank.rank for rank in self.ranks if rank.problems}
        if gone := tuple(rank for rank in self.missing if rank not in damaged):
            return f"{rank_list(gone)} left no trace"
        if self.problems:
            return self.problems[0] + (f" ({len(self.problems)} problems in all)" if len(self.problems) > 1 else "")
        short = tuple(rank.rank for rank in self.ranks if not rank.ended)
        return f"{rank_list(short)} did not come to the end" if short else ""

    @cached_property
    def by_rank(self) -> dict[int, RankTrace]:
        return {rank.rank: rank for rank in self.ranks}

    @cached_property
    def steps(self) -> tuple[int, ...]:
        """The steps that every rank has recorded, ascending."""
        # Of a script that is seen from the outside, one rank tells it all.
        told = [rank for rank in self.ranks if rank.steps or rank.header.get("seen") != "log"]
        return tuple(sorted(set.intersection(*(set(rank.steps) for rank in told)))) if told else ()

    @property
    def header(self) -> Mapping[str, Any]:
        """Of the lowest rank that has one; empty where none has."""
        return next((rank.header for rank in self.ranks if rank.header), {})

    @cached_property
    def hosts(self) -> dict[int, str]:
        """Host of each rank that has a header: the launcher's word for it, and the rank's own where there is none."""
        own = {rank.rank: str(rank.header.get("host", "")) for rank in self.ranks if rank.header}
        told = self.placed if len(self.placed) >= self.world_size else ()
        return own | {rank: told[rank] for rank in own if rank < len(told) and told[rank]}


def rank_list(ranks: tuple[int, ...] | list[int], most: int = 6) -> str:
    """``rank 3``, ``ranks 0, 2 and 5``, ``ranks 0, 1, 2, 3, 4, 5 and 994 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > most:
        return f"ranks {', '.join(map(str, ranks[:most]))} and {len(ranks) - most} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def read(folder: Path, world_size: int) -> Trace:
    """The trace in ``folder`` of a rung that was planned for ``world_size`` ranks.

    Cut and damaged files are read as far as they go, and named in ``Trace.problems``. Raises TraceError where a file is
    no trace of this version.
    """
    files = parts(folder)
    names = [re.fullmatch(r"rank-(\d+)(~\d+)?\.jsonl", name) for name in files]
    found = sorted(int(name[1]) for name in names if name and not name[2])
    extents: dict[str, Extent] = {}
    return Trace(
        folder,
        world_size,
        tuple(_read_rank(folder, files, rank, extents) for rank in found),
        repeated=tuple((int(name[1]), _first_line(files[name[0]])) for name in names if name and name[2]),
        placed=_placed(folder),
    )


def _first_line(part: Part) -> Mapping[str, Any]:
    """The header of a file of which nothing else is read."""
    try:
        header = parse(part.read().partition(b"\n")[0])
    except (OSError, ValueError):
        return {}
    return header if isinstance(header, dict) else {}


def _placed(folder: Path) -> tuple[str, ...]:
    """Where the launcher says that each rank ran."""
    try:
        hosts = parse((folder / "exit.json").read_text(encoding="utf-8")).get("hosts") or ()
        return tuple(map(str, hosts))
    except (OSError, ValueError, AttributeError, TypeError):
        return ()


def _read_rank(folder: Path, files: Mapping[str, Part], rank: int, extents: dict[str, Extent]) -> RankTrace:
    problems: list[str] = []
    header: Mapping[str, Any] = {}
    entries: dict[int, Entry] = {}
    steps: dict[int, Step] = {}
    evidence: Mapping[str, Any] = {}
    routing: list[Mapping[str, Any]] = []
    moments: dict[str, Mapping[str, Any]] = {}
    observed: list[Mapping[str, Any]] = []
    passed: dict[int, Mapping[str, Any]] = {}
    ended = False
    announced = 0  # records that the rank says it has written: a file may be cut between two of them
    path = events_path(folder, rank)
    chain = Chain(path)
    for number, line in enumerate(lines_of(files[path.name], rank, problems), 1):
        try:
            event = read_line(line, path, chain)
            match event["event"]:
                case "header":
                    header = event
                case "entry":
                    entries[event["index"]] = _entry(event, extents)
                case "step":
                    steps[int(event["step"])] = event
                    announced = int(event.get("digests", announced))
                case "loaded" | "saved" | "evaluation" as moment:
                    moments[moment] = event
                case "routing":
                    routing.append(event)
                case "observed":
                    observed.append(event)
                case "read":
                    passed[int(event["step"])] = event
                case "evidence":
                    evidence = {**evidence, **event}
                case "end":
                    ended = True
                    announced = int(event.get("digests", announced))
        except TraceError:
            raise
        except DAMAGED as error:
            # What follows a damaged line may refer to what it said, so it is left out.
            problems.append(f"{path.name} of rank {rank} is cut or damaged at line {number} ({type(error).__name__})")
            ended = False
            break
    digests, damage = _read_digests(digests_path(folder, rank), files, rank, entries)
    if (len(digests) < announced or (ended and len(digests) > announced)) and not damage:
        damage.append(f"{digests.part.name} of rank {rank} has {len(digests)} of {announced} records")
    return RankTrace(
        rank=rank,
        header=header,
        entries=entries,
        steps=steps,
        evidence=evidence,
        digests=digests,
        ended=ended,
        problems=(*problems, *damage),
        routing=tuple(routing),
        **moments,
        observed=tuple(observed),
        read=passed,
    )


DAMAGED = (ValueError, KeyError, TypeError, OverflowError)
"""What comes of a line that is JSON, and not what it should be."""


def lines_of(part: Part, rank: int, problems: list[str]) -> list[bytes]:
    """Those of a file of ``rank``; where it cannot be read, the reason joins ``problems``."""
    try:
        return part.read().splitlines()
    except OSError as error:
        problems.append(f"{part.name} of rank {rank} cannot be read: {error.strerror}")
        return []


def read_line(line: bytes, path: Path, chain: Chain) -> dict[str, Any]:
    """The event on a line. NaN and Infinity are read as the floats that they are.

    Raises TraceError for a header of another version, ValueError where the line is damaged.
    """
    try:
        event = parse(chain.check(line))
    except Unsigned:
        event = parse(line)  # of another version, whose lines may not be signed
        if not (isinstance(event, dict) and event.get("event") == "header" and event.get("schema") != SCHEMA):
            raise
    if not isinstance(event, dict):
        raise ValueError("no event")
    if event["event"] == "header" and event.get("schema") != SCHEMA:
        raise TraceError(
            f"{path} has trace schema {event.get('schema')!r}; this version reads schema {SCHEMA}: "
            "judge it with the version of dist_checks that recorded it"
        )
    return event


def _entry(event: Mapping[str, Any], extents: dict[str, Extent]) -> Entry:
    # Thousands of ranks announce the same few extents: one object for all makes them cheap to keep and to compare.
    key = repr(event["extent"])
    extent = extents.get(key)
    if extent is None:
        extent = extents.setdefault(key, Extent.from_json(event["extent"]))
    return Entry(Kind(event["kind"]), str(event["name"]), plain_dtype(event["dtype"]), extent)


def plain_dtype(name: object) -> str:
    """``float32`` for ``torch.float32``."""
    return str(name).removeprefix("torch.")


def _read_digests(
    path: Path, files: Mapping[str, Part], rank: int, entries: Mapping[int, Entry]
) -> tuple[Digests, list[str]]:
    part = files.get(path.name)
    if part is None:
        return Digests.of(Part(path.name, path, 0, 0), np.zeros(0, RECORD)), [f"{path.name} of rank {rank} is missing"]
    problems = []
    whole, rest = divmod(part.size, RECORD_BYTES)
    try:
        records = _map(part, whole)
    except OSError as error:
        return Digests.of(part, np.zeros(0, RECORD)), [
            f"{path.name} of rank {rank} cannot be read: {error.strerror or error}"
        ]
    if rest:
        problems.append(f"{path.name} of rank {rank} is cut inside record {whole}")
    good = _undamaged(records)
    if good < whole:
        problems.append(f"{path.name} of rank {rank} is damaged at record {good} of {whole} (checksum)")
        records = records[:good]
    unknown = np.flatnonzero(~np.isin(records["entry"], np.fromiter(entries, np.int64, len(entries))))
    if unknown.size:
        problems.append(f"record {unknown[0]} of {path.name} of rank {rank} belongs to no entry")
        records = records[: unknown[0]]
    return Digests.of(part, records), problems


def _map(part: Part, count: int) -> Records:
    if not count:
        return np.zeros(0, RECORD)
    return np.memmap(part.path, dtype=RECORD, mode="r", offset=part.offset, shape=(count,))


def _undamaged(records: Records) -> int:
    """How many records stand before the first one whose checksum is wrong."""
    data, crc32, start = records.view(np.uint8).data, zlib.crc32, 0
    for index, (checksum, unused) in enumerate(
        zip(records["checksum"].tolist(), records["unused"].tolist(), strict=True)
    ):
        if crc32(data[start : start + _BODY_BYTES]) != checksum or unused:
            return index
        start += RECORD_BYTES
    return len(records)
