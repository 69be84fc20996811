"""Files in shared memory that ranks have mapped: a rank that is killed leaves its own behind."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/dev/shm")


def names() -> set[str]:
    """What is there now."""
    with suppress(OSError):
        return set(os.listdir(FOLDER))
    return set()


def mapped(processes: Iterable[int]) -> set[str]:
    """The names of those that some processes have in their memory."""
    found = set()
    for process in processes:
        with suppress(OSError):
            for line in Path(f"/proc/{process}/maps").read_text(errors="replace").splitlines():
                path = line.partition(f" {FOLDER}/")[2]
                if path and not path.endswith(" (deleted)"):
                    found.add(path)
    return found


def remove(those: Iterable[str]) -> None:
    """Those that belong to this user and are in no process's memory any more."""
    left = [name for name in those if (FOLDER / name).exists()]
    if not left:
        return
    used = mapped(int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    for name in left:
        with suppress(OSError):
            if name not in used and (FOLDER / name).stat().st_uid == os.geteuid():
                (FOLDER / name).unlink()
