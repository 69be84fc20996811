"""Real disks of a test: small ones that get full, and such that cannot be written."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(path: Path, size: str, *, read_only: bool = False) -> Iterator[Path]:
    """A new disk at ``path`` for the time of a block; skips, with the reason, where none may be mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a disk")
    path.mkdir(parents=True, exist_ok=True)
    options = f"size={size}" + ",ro" * read_only
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no disk may be mounted here: {done.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
