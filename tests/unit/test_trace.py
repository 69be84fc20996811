"""What a rank writes stands in the files as the format says."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from dist_checks.extent import Extent
from dist_checks.trace import (
    BEFORE,
    BUCKETS,
    RECORD_BYTES,
    Entry,
    Kind,
    Values,
    Writer,
    add,
    digests_path,
    events_path,
    pack,
)

# Whole numbers, so that sums do not depend on their order.
NUMBERS = st.integers(-(2**40), 2**40).map(float)
VALUES = st.builds(
    Values,
    fingerprint=st.integers(0, 2**64 - 1),
    elements=st.integers(0, 2**40),
    zeros=st.integers(0, 2**40),
    nonfinite=st.integers(0, 2**40),
    sum_squares=NUMBERS,
    largest=NUMBERS,
    sketch=st.tuples(*[NUMBERS] * BUCKETS),
)
NOTHING = Values(0, 0, 0, 0, 0.0, float("-inf"), (0.0,) * BUCKETS)


@given(VALUES, VALUES, VALUES)
def test_digests_add_like_numbers(a: Values, b: Values, c: Values) -> None:
    assert add(a, b) == add(b, a)
    assert add(add(a, b), c) == add(a, add(b, c))
    assert add(a, NOTHING) == a


def test_a_record_is_under_700_bytes_and_checked() -> None:
    record = pack(3, 7, -1, NOTHING._replace(fingerprint=2**64 - 1))
    assert len(record) == RECORD_BYTES < 700
    assert struct.unpack_from("<iiqQ", record) == (3, 7, -1, 2**64 - 1)
    checksum = struct.unpack_from("<I", record, RECORD_BYTES - 8)[0]
    assert checksum == zlib.crc32(record[:-8])


def events(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in events_path(folder, 0).read_text().splitlines()]


def test_an_entry_is_announced_once_and_again_when_it_changes(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 0, {"rung": "single"})
    entry = Entry(Kind.WEIGHT, "embedding.weight", "float64", Extent.full((4, 2)))
    writer.digest(BEFORE, entry, NOTHING)
    writer.digest(0, entry, NOTHING)
    writer.digest(1, entry._replace(extent=Extent.box((4, 2), (0, 0), (2, 2))), NOTHING)
    writer.close(memory_peak=1)
    assert [event["event"] for event in events(tmp_path)] == ["header", "entry", "entry", "end"]
    assert [event["index"] for event in events(tmp_path) if event["event"] == "entry"] == [0, 1]
    assert digests_path(tmp_path, 0).stat().st_size == 3 * RECORD_BYTES


def test_a_killed_rank_leaves_what_was_flushed(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 0, {"rung": "single"})
    entry = Entry(Kind.GRADIENT, "w", "float32", Extent.full((1,)))
    writer.digest(0, entry, NOTHING)
    writer.event("step", step=0)
    writer.flush()
    assert [event["event"] for event in events(tmp_path)] == ["header", "entry", "step"]
    assert digests_path(tmp_path, 0).stat().st_size == RECORD_BYTES
    writer.close()
