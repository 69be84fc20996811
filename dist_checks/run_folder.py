"""The folder of a run, when it is made, and what it says about where it was made."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from importlib import metadata
from itertools import count
from pathlib import Path
from typing import Any

from dist_checks.matrix import ConfigError, Matrix
from dist_checks.stored import LOCK
from dist_checks.submitting import awaited


def new_folder(name: str, out: Path | None) -> Path:
    """An empty folder; ``runs/latest`` points to it unless the user has named one."""
    folder = out or Path("runs") / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{name}"
    try:
        if out is None:
            folder = _make_new(folder)
        folder.mkdir(parents=True, exist_ok=True)
        if any(found.name != LOCK for found in folder.iterdir()) and not awaited(folder):
            raise ConfigError(f"--out: {folder} is not empty, and nothing in it is overwritten")
        if out is None:
            _point_to(folder.parent / "latest", folder)
    except OSError as error:
        raise ConfigError(f"--out: {folder} cannot be written: {error.strerror}") from None
    return folder


def _make_new(folder: Path) -> Path:
    """One that nobody else has made: two harnesses may have started in the same second."""
    for number in count(1):
        new = folder if number == 1 else folder.with_name(f"{folder.name}~{number}")
        try:
            new.mkdir(parents=True)
            break
        except FileExistsError:
            continue
    return new


def _point_to(link: Path, folder: Path) -> None:
    """Replace a symbolic link in one step, so that a reader never finds none."""
    new = link.with_name(f".latest-{os.getpid()}")
    new.symlink_to(folder.name)
    new.replace(link)


def environment(matrix: Matrix) -> dict[str, Any]:
    """Where and with what the run was made: shown in the report, never used to judge."""
    versions = {}
    for package in ("dist-checks", "torch", "deepspeed", "ray", "numpy"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **versions,
        "launcher": matrix.launch.launcher,
        "command": " ".join(["dist-checks", *sys.argv[1:]]),
    }
