"""The files between the ranks and the judge: what a rank writes with the standard library, the judge reads with numpy.

A rank owns two append-only files in the folder of its rung, flushed at the end of every step, so that a killed rank
leaves everything up to its last step:

``rank-00000.jsonl``
    One JSON object a line, each with an ``event``: ``header`` (who and where), ``entry`` (a tensor that is going to be
    recorded: its kind, name, extent), ``step`` (what happened in a step), ``end`` (the run came to its end).

``rank-00000.digests``
    One record of fixed size for each digest: which step, which entry, which item (a sample id, else -1), the values,
    and a checksum of the record.

A trace never says that a fault was planted, and nothing that is read here is executed.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import IO, Any, NamedTuple

from dist_checks.extent import Extent

SCHEMA = 2
BUCKETS = 64
"""Number of float64 buckets of a sketch."""

BEFORE = -1
"""The step of what is recorded before the first step: the initial weights and buffers."""

NO_ITEM = -1
"""The item of a digest that belongs to no single sample."""


class Kind(StrEnum):
    """What a recorded tensor is, and at which moment of the step it was seen."""

    WEIGHT = "weight"  # before the first step (step BEFORE), then after each step
    BUFFER = "buffer"  # at the same moments
    GRADIENT = "gradient"  # after reduction, before clipping, loss scale divided out
    APPLIED = "applied"  # the gradient as the optimizer gets it: after unscaling and clipping
    STATE = "state"  # optimizer state after the step, named "<parameter>/<state>"
    OUTPUT = "output"  # of a block, one digest a sample
    OUTPUT_GRADIENT = "output_gradient"  # of that output, one digest a sample, loss scale divided out
    SAMPLE_GRADIENT = "sample_gradient"  # one sample's own share of the gradient; recorded by singles only
    TERM_GRADIENT = "term_gradient"  # of one term of the loss alone, named "<parameter>/<term>"; by singles only


class Values(NamedTuple):
    """A digest: a few numbers about one tensor, or one part of it, that add up over the parts of a tensor."""

    fingerprint: int
    """Position-weighted sum of the bits, 0 <= fingerprint < 2**64."""
    elements: int
    zeros: int
    nonfinite: int
    sum_squares: float
    """Of the finite elements."""
    largest: float
    """Largest magnitude of the finite elements."""
    sketch: tuple[float, ...]
    """BUCKETS signed sums; linear in the tensor."""


def add(a: Values, b: Values) -> Values:
    """The digest of the union of two disjoint parts of one tensor."""
    return Values(
        fingerprint=(a.fingerprint + b.fingerprint) % 2**64,
        elements=a.elements + b.elements,
        zeros=a.zeros + b.zeros,
        nonfinite=a.nonfinite + b.nonfinite,
        sum_squares=a.sum_squares + b.sum_squares,
        largest=max(a.largest, b.largest),
        sketch=tuple(x + y for x, y in zip(a.sketch, b.sketch, strict=True)),
    )


# step, entry, item, fingerprint, elements, zeros, nonfinite, sum_squares, largest, sketch | checksum, unused
_BODY = struct.Struct(f"<iiqQqqqdd{BUCKETS}d")
_TAIL = struct.Struct("<II")
RECORD_BYTES = _BODY.size + _TAIL.size


def pack(step: int, entry: int, item: int, values: Values) -> bytes:
    """One record of a ``.digests`` file, RECORD_BYTES long."""
    body = _BODY.pack(step, entry, item, *values[:-1], *values.sketch)
    return body + _TAIL.pack(zlib.crc32(body), 0)


class Entry(NamedTuple):
    """A tensor that this rank records, as it stands in the ``.jsonl`` file; digests refer to it by its index."""

    kind: Kind
    name: str
    dtype: str
    extent: Extent


def events_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:05d}.jsonl"


def digests_path(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:05d}.digests"


def collectives_path(folder: Path, rank: int) -> Path:
    """Which collectives the rank has called: see docs/trace.md."""
    return folder / f"rank-{rank:05d}.collectives"


class Unsigned(ValueError):
    """A line was changed after it was written, or is not whole, or does not belong here."""


class Chain:
    """Signs the lines of a file, each a JSON object, or checks them in the same order.

    The checksum of a line, its last field, covers those before it and the name of the file: a flipped bit is noticed,
    a line that is missing, repeated or moved, and the file of another rank.
    """

    def __init__(self, path: Path | str) -> None:
        self._sum = zlib.crc32(Path(path).name.encode())

    def sign(self, line: str) -> str:
        assert line.endswith("}"), line
        self._sum = zlib.crc32(line.encode(), self._sum)
        return f'{line[:-1]},"crc":{self._sum}}}\n'

    def check(self, line: bytes) -> bytes:
        """The JSON object that :meth:`sign` was given; raises Unsigned where it is not that."""
        body, _, given = line.rstrip(b"\n").rpartition(b',"crc":')
        self._sum = zlib.crc32(body + b"}", self._sum)
        if given != b"%d}" % self._sum:
            raise Unsigned("checksum")
        return body + b"}"


def parse(text: str | bytes) -> Any:
    """What stands in a JSON file or line. Raises ValueError for all that is none, whatever it is."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def checksum(values: Mapping[str, Any]) -> int:
    """Of what a JSON file says, however it is laid out: of all its fields but ``checksum``."""
    rest = {name: value for name, value in values.items() if name != "checksum"}
    return zlib.crc32(json.dumps(rest, sort_keys=True).encode())


class NotWritten(OSError):
    """A rank could not write its trace: the disk is to blame, not what was computed."""


@contextmanager
def writing(path: Path | str, rank: int) -> Iterator[None]:
    """Raises NotWritten, with the file and the rank, where the disk is full or read-only."""
    try:
        yield
    except OSError as error:
        raise NotWritten(
            error.errno, f"{Path(path).name} of rank {rank} cannot be written: {error.strerror}"
        ) from error


def is_claimed(events: Path) -> bool:
    """Another process, alive, has begun to write this file: it takes itself for the same rank."""
    try:
        with events.open(encoding="utf-8") as file:
            header = json.loads(file.readline())
        pid, written = int(header["pid"]), events.stat().st_mtime
        if header.get("host") != socket.gethostname():
            return time.time() - written < RECENTLY
        # A process that has started since then only has the number of one that is gone.
        return pid != os.getpid() and Path(f"/proc/{pid}").stat().st_ctime <= written
    except (OSError, ValueError, KeyError, TypeError):
        return False


RECENTLY = 60.0
"""Seconds: whether a process of another host is alive cannot be seen."""


class Writer:
    """On every rank: appends to this rank's two files. Only :meth:`flush` gives them to the operating system.

    Where another process is writing as the same rank, the files are named ``rank-00000~PID``: both are to be seen.
    """

    def __init__(self, folder: Path, rank: int, header: Mapping[str, Any]) -> None:
        with writing(folder, rank):
            folder.mkdir(parents=True, exist_ok=True)
        events, digests = events_path(folder, rank), digests_path(folder, rank)
        if is_claimed(events):
            events, digests = (p.with_stem(f"{p.stem}~{os.getpid()}") for p in (events, digests))
        self._rank = rank
        self._chain = Chain(events)
        with writing(events, rank):
            self._events: IO[str] = events.open("w", encoding="utf-8")
        with writing(digests, rank):
            self._digests: IO[bytes] = digests.open("wb")
        self._entries: dict[tuple[Kind, str], tuple[int, Entry]] = {}
        self._announced = 0
        self._records = 0
        self.event("header", schema=SCHEMA, rank=rank, **header)
        self.flush()

    def event(self, event: str, **fields: Any) -> None:
        """Append one line. Floats that are not finite are written as JavaScript writes them: NaN, Infinity.

        ``step`` and ``end`` say how many digests there are by then, so that a file cut between two of them is noticed.
        """
        if event in ("step", "end"):
            self.flush()  # a rank that is killed never promises more than it has left
            fields["digests"] = self._records
        with writing(self._events.name, self._rank):
            self._events.write(self._chain.sign(json.dumps({"event": event, **fields}, separators=(",", ":"))))

    def digest(self, step: int, entry: Entry, values: Values, item: int = NO_ITEM) -> None:
        """Append one record; announces the entry when it is new, or when its dtype or extent has changed."""
        key = (entry.kind, entry.name)
        known = self._entries.get(key)
        if known is None or known[1] != entry:
            known = (self._announced, entry)
            self._entries[key] = known
            self._announced += 1
            self.event(
                "entry",
                index=known[0],
                kind=entry.kind.value,
                name=entry.name,
                dtype=entry.dtype,
                extent=entry.extent.to_json(),
            )
        with writing(self._digests.name, self._rank):
            self._digests.write(pack(step, known[0], item, values))
        self._records += 1

    def flush(self) -> None:
        # Digests last: whoever finds a record finds its entry too.
        for file in (self._events, self._digests):
            with writing(file.name, self._rank):
                file.flush()

    def close(self, **fields: Any) -> None:
        """Append the ``end`` event: without it the rank is known to have been cut short."""
        self.event("end", **fields)
        self.abandon()

    def abandon(self) -> None:
        """Close the files without the ``end`` event: the run was cut short."""
        self.flush()
        self._events.close()
        self._digests.close()
