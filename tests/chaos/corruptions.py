"""What can be wrong with one file of a run: each takes the file and the source of chance, and leaves it so."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

from dist_checks.trace import RECORD_BYTES, Chain, checksum


def flip_a_bit(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def cut(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def cut_between(path: Path, chance: random.Random) -> None:
    """After a whole line or record."""
    data = path.read_bytes()
    if path.suffix == ".digests":
        path.write_bytes(data[: chance.randrange(len(data) // RECORD_BYTES) * RECORD_BYTES])
    else:
        lines = data.splitlines(keepends=True)
        path.write_bytes(b"".join(lines[: chance.randrange(len(lines))]))


def delete(path: Path, chance: random.Random) -> None:
    path.unlink()


def zero_a_block(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    length = len(data[at : at + 512])
    data[at : at + length] = bytes(length)
    path.write_bytes(data)


def append(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes() + chance.randbytes(chance.choice((1, 7, RECORD_BYTES))))


def repeat(path: Path, chance: random.Random) -> None:
    """A line or a record twice."""
    data = path.read_bytes()
    size = RECORD_BYTES if path.suffix == ".digests" else len(data.splitlines(keepends=True)[-1])
    path.write_bytes(data + data[-size:])


def leave_out(path: Path, chance: random.Random) -> None:
    """A line or a record in the middle."""
    data = path.read_bytes()
    if path.suffix == ".digests":
        parts = [data[at : at + RECORD_BYTES] for at in range(0, len(data), RECORD_BYTES)]
    else:
        parts = data.splitlines(keepends=True)
    del parts[chance.randrange(len(parts))]
    path.write_bytes(b"".join(parts))


def older_schema(path: Path, chance: random.Random) -> None:
    """As another version would have written it: with sound checksums, or with none."""
    text = path.read_text(errors="replace")
    if path.suffix == ".json":
        values = json.loads(text)
        if "schema" in values:
            values["schema"] = chance.choice((0, 98, 99))
            values.pop("checksum")
            path.write_text(json.dumps(values | chance.choice(({}, {"checksum": checksum(values)}))))
    elif path.suffix != ".digests":
        lines = [json.loads(line) for line in text.splitlines()]
        chain, signed = Chain(path), chance.random() < 0.5
        for line in lines:
            del line["crc"]
        lines[0]["schema"] = chance.choice((0, 1, 99))
        plain = [json.dumps(line) for line in lines]
        path.write_text("".join(chain.sign(line) if signed else f"{line}\n" for line in plain))


def garbage(path: Path, chance: random.Random) -> None:
    """Something else altogether."""
    other = (b"null\n", b"[]\n", b"{}\n", b'{"event":"header"}\n', b"[" * 99_999, b'{"schema": 1e999}', b"\xff\xfe\n")
    path.write_bytes(chance.choice((*other, chance.randbytes(4096))))


def replace_by_a_folder(path: Path, chance: random.Random) -> None:
    """Nothing that can be read."""
    path.unlink()
    path.mkdir()


HOWS: tuple[Callable[[Path, random.Random], None], ...] = (
    flip_a_bit,
    flip_a_bit,
    cut,
    cut_between,
    delete,
    zero_a_block,
    append,
    repeat,
    leave_out,
    older_schema,
    older_schema,
    garbage,
    garbage,
    replace_by_a_folder,
)
