"""The files that ranks left in one folder: each by itself, or those of a node in one archive."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ARCHIVES = "ranks-*.zip"
"""Written by the agent of a node when all of its ranks have ended well; members are stored as they are."""
_LOCAL = struct.Struct("<4s22xHH")
"""Of a member: signature, lengths of its name and of what else stands before its bytes."""
_SIGNATURE = b"PK\x03\x04"


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes of one file, wherever they are."""

    name: str
    path: Path
    """The file itself, or the archive."""
    offset: int
    size: int

    def read(self) -> bytes:
        """Raises OSError."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


def parts(folder: Path) -> dict[str, Part]:
    """By name, in order. A file that stands by itself counts where an archive has it, too: the agent was killed before
    it could remove it. Of an archive that is damaged nothing is read, so its ranks have left nothing."""
    found = {part.name: part for archive in sorted(folder.glob(ARCHIVES)) for part in _members(archive)}
    for path in folder.glob("rank-*"):
        try:
            found[path.name] = Part(path.name, path, 0, path.stat().st_size)
        except FileNotFoundError:  # archived meanwhile
            continue
    return dict(sorted(found.items()))


def _members(archive: Path) -> Iterator[Part]:
    try:
        with zipfile.ZipFile(archive) as zipped, archive.open("rb") as file:
            for member in zipped.infolist():
                file.seek(member.header_offset)
                signature, name, extra = _LOCAL.unpack(file.read(_LOCAL.size))
                if signature != _SIGNATURE or member.compress_type != zipfile.ZIP_STORED:
                    return
                offset = member.header_offset + _LOCAL.size + name + extra
                yield Part(member.filename, archive, offset, member.file_size)
    except (OSError, zipfile.BadZipFile, struct.error):
        return
