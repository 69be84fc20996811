"""report.json as event files for TensorBoard: written with the standard library, so neither torch nor TensorBoard is
needed."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

FILE = "events.out.tfevents.dist_checks"
"""In a folder for each rung, which TensorBoard shows as a run."""

Scalar = tuple[str, int, float]
"""(tag, step, value)."""

SERIES = {
    "loss": "loss",
    "reference_loss": "loss of what it is compared with",
    "gradient_distance": "gradient/distance",
    "gradient_allowed": "gradient/allowed",
}


def write(report: Mapping[str, Any], folder: Path) -> list[Path]:
    """The files that were written, one for each rung that has numbers. What was there of an earlier run is replaced."""
    now = time.time()
    out = []
    for rung in report["rungs"]:
        rows = list(scalars(rung))
        if rows:
            path = folder / str(rung["id"]) / FILE
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"".join(records(rows, now)))
            out.append(path)
    return out


def scalars(rung: Mapping[str, Any]) -> Iterator[Scalar]:
    """What is finite, step by step: TensorBoard draws nothing else."""
    series, health = rung.get("series") or {}, rung.get("health") or {}
    steps = list(series.get("steps") or ())
    for key, tag in SERIES.items():
        yield from _curve(tag, steps, series.get(key) or ())
    yield from _curve("gradient/norm", list(health.get("steps") or ()), health.get("norm") or ())
    held = list(health.get("validation") or ())
    yield from _curve("loss of validation", [step for step, _ in held], [loss for _, loss in held])
    for name, value in (health.get("lines") or {}).items():
        yield from _curve(f"expected/{name}", steps, [value] * len(steps))
    heat = health.get("heat") or {}
    for key in ("gradient", "update"):
        for name, row in zip(heat.get("names") or (), heat.get(key) or (), strict=False):
            values = [None if value is None else 10.0**value for value in row]
            yield from _curve(f"{key} over weight/{name}", list(heat["steps"]), values)


def _curve(tag: str, steps: Sequence[int], values: Sequence[Any]) -> Iterator[Scalar]:
    for step, value in zip(steps, values, strict=False):
        if isinstance(value, (int, float)) and math.isfinite(value):
            yield tag, int(step), float(value)


def records(rows: Sequence[Scalar], now: float) -> Iterator[bytes]:
    """TFRecords (length, its checksum, data, its checksum) of Event messages: fields wall_time 1, step 2, file_version
    3, summary 5; Summary has value 1, Value has tag 1 and simple_value 2."""
    yield _record(_double(1, now) + _bytes(3, b"brain.Event:2"))
    for tag, step, value in rows:
        scalar = _bytes(1, tag.encode()) + _key(2, 5) + struct.pack("<f", value)
        yield _record(_double(1, now) + _key(2, 0) + _varint(step) + _bytes(5, _bytes(1, scalar)))


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(length)) + data + struct.pack("<I", masked(data))


def _key(field: int, kind: int) -> bytes:
    return _varint(field << 3 | kind)


def _double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # steps before the first are negative
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def masked(data: bytes) -> int:
    """CRC-32C, rotated and shifted as TFRecord wants it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _table() -> tuple[int, ...]:
    out = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        out.append(value)
    return tuple(out)


TABLE = _table()


def crc32c(data: bytes) -> int:
    """Castagnoli's polynomial, not the one of zlib."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF
