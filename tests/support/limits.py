"""A cgroup of a test, whose processes may not have more than some bytes of memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

# (where cgroups are made, the file that takes the limit): of the first version, and of the second.
KINDS = ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max"))


@contextmanager
def cgroup(most: int) -> Iterator[Path]:
    """For the time of a block; skips, with the reason, where none can be made. Its processes have to be gone then."""
    tried = []
    for root, file in KINDS:
        if not (root / "cgroup.procs").exists():
            continue
        own = root / f"dist_checks_test_{os.getpid()}"
        try:
            own.mkdir()
            (own / file).write_text(str(most))
        except OSError as error:
            tried.append(str(error))
            with suppress(OSError):
                own.rmdir()
            continue
        try:
            yield own
        finally:
            for _ in range(100):
                with suppress(OSError):
                    own.rmdir()
                    break
                time.sleep(0.05)
        return
    pytest.skip(f"no memory can be limited by a cgroup here: {'; '.join(tried) or 'there is none'}")
