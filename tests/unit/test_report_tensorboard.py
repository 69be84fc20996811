"""Event files for TensorBoard: as its format says, read back by a reader of its own."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dist_checks.report import tensorboard

RUNG = {
    "id": "learn",
    "series": {"steps": [0, 1, 300], "loss": [5.5, math.nan, 2.25], "reference_loss": [None] * 3},
    "health": {
        "steps": [0, 1, 300],
        "norm": [1.0, 2.0, None],
        "validation": [[0, 5.6]],
        "lines": {"ln(256)": 5.545},
        "heat": {"names": ["head"], "steps": [0], "gradient": [[-2.0]], "update": [[None]]},
    },
}
LOSSES = {("loss", 0): 5.5, ("loss", 300): 2.25, ("loss of validation", 0): 5.6}
NORMS = {("gradient/norm", 0): 1.0, ("gradient/norm", 1): 2.0, ("gradient over weight/head", 0): 0.01}


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte, at = data[at], at + 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def fields(data: bytes) -> dict[int, Any]:
    out: dict[int, Any] = {}
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        match key & 7:
            case 0:
                out[key >> 3], at = varint(data, at)
            case 2:
                size, at = varint(data, at)
                out[key >> 3], at = data[at : at + size], at + size
            case kind:
                form, size = ("<d", 8) if kind == 1 else ("<f", 4)
                out[key >> 3], at = struct.unpack(form, data[at : at + size])[0], at + size
    return out


def events(path: Path) -> Iterator[dict[int, Any]]:
    data, at = path.read_bytes(), 0
    while at < len(data):
        (size,) = struct.unpack("<Q", data[at : at + 8])
        assert struct.unpack("<I", data[at + 8 : at + 12])[0] == tensorboard.masked(data[at : at + 8])
        body = data[at + 12 : at + 12 + size]
        assert struct.unpack("<I", data[at + 12 + size : at + 16 + size])[0] == tensorboard.masked(body)
        yield fields(body)
        at += 16 + size


def test_the_checksum_is_that_of_the_format() -> None:
    assert tensorboard.crc32c(b"123456789") == 0xE3069283, "the check value of CRC-32C"
    assert tensorboard.crc32c(bytes(32)) == 0x8A9136AA, "RFC 3720, B.4"


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    [path] = tensorboard.write({"rungs": [RUNG, {"id": "tp2"}]}, tmp_path)
    assert path.parent == tmp_path / "learn"
    first, *rest = events(path)
    assert first[3] == b"brain.Event:2"
    found = {}
    for event in rest:
        scalar = fields(fields(event[5])[1])
        found[scalar[1].decode(), event[2]] = round(scalar[2], 5)
    lines = {("expected/ln(256)", step): 5.545 for step in (0, 1, 300)}
    assert found == LOSSES | NORMS | lines, "a loss that is not finite is left out"
