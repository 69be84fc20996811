"""Scalars from TensorBoard's event files, read with the standard library."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path


def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
    """(step, value) of every scalar called ``tag`` in the event files under ``folder``, in the order of steps.

    A record is its length as uint64, a checksum, an ``Event`` message and another checksum (TFRecord). Files that are
    cut are read as far as they go.
    """
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*tfevents*"))
    found = [scalar for path in paths for event in _records(path.read_bytes()) for scalar in _scalars(event, tag)]
    return sorted(found, key=lambda each: each[0])


def _records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        if at + 16 + length > len(data):
            return
        yield data[at + 12 : at + 12 + length]
        at += 16 + length


def _scalars(event: bytes, tag: str) -> Iterator[tuple[int, float]]:
    """Of an Event: field 2 is its step, 5 its Summary; of that, 1 are Values, with tag (1) and simple_value (2), or a
    TensorProto (8) with float_val (5) or tensor_content (4)."""
    step, summaries = 0, []
    for number, value in _fields(event):
        if number == 2 and isinstance(value, int):
            step = value
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
    for summary in summaries:
        for number, value in _fields(summary):
            if number == 1 and isinstance(value, bytes):
                fields = dict(_fields(value))
                if fields.get(1) == tag.encode():
                    yield from ((step, number) for number in _number(fields))


def _number(fields: dict[int, int | bytes]) -> Iterator[float]:
    simple, tensor = fields.get(2), fields.get(8)
    if isinstance(simple, bytes):
        yield struct.unpack("<f", simple)[0]
    elif isinstance(tensor, bytes):
        inner = dict(_fields(tensor))
        content = inner.get(5) or inner.get(4)
        if isinstance(content, bytes) and len(content) == 4:
            yield struct.unpack("<f", content)[0]


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of the fields of a protocol buffer: whole numbers, or the bytes of anything else."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        match key & 7:
            case 0:
                value, at = _varint(message, at)
                yield key >> 3, value
            case 1:
                yield key >> 3, message[at : at + 8]
                at += 8
            case 2:
                length, at = _varint(message, at)
                yield key >> 3, message[at : at + length]
                at += length
            case 5:
                yield key >> 3, message[at : at + 4]
                at += 4
            case _:
                return


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if not byte & 128:
            break
    return value, at
