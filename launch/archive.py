"""Makes one file of those that the ranks of a node have left: shared file systems count files."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def archive(folder: Path, ranks: Sequence[int]) -> None:
    """``ranks-00000-00003.zip`` for rank-00000.log and all else whose names begin with one of these ranks.

    Members are stored as they are, so that they can be mapped into memory where they lie. Whoever is killed on the way
    leaves the single files, perhaps with the archive beside them, never less. Where it cannot be written, they stay.
    """
    found = sorted(path for rank in ranks for path in folder.glob(f"rank-{rank:05d}*"))
    if len(found) < 2:
        return
    whole = folder / f"ranks-{min(ranks):05d}-{max(ranks):05d}.zip"
    part = whole.with_suffix(".part")
    try:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED, strict_timestamps=False) as zipped:
            for path in found:
                zipped.write(path, path.name)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.rename(whole)
    except OSError:
        with suppress(OSError):
            part.unlink()
        return
    for path in found:
        with suppress(OSError):
            path.unlink()
