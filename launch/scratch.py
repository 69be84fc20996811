"""Folders for scratch files, which go away even if every process that knows of them is killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def make(prefix: str) -> tuple[Path, int]:
    """A new folder, and an open file that holds a lock in it for as long as this process lives.

    First those with this prefix are removed whose process is gone: it was killed, and left nobody to do so.
    """
    sweep(prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    holding = os.open(folder / "new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(holding, fcntl.LOCK_EX)
    (folder / "new").rename(folder / "lock")  # it has the name that others look for once it is held
    return folder, holding


def sweep(prefix: str) -> None:
    """Removes the folders that nobody holds any more."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            held = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(held)


@contextmanager
def held(prefix: str) -> Iterator[Path]:
    """A new folder for the time of a block."""
    folder, holding = make(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(holding)
