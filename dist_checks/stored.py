"""What a run has stored: files that are never seen half written, in a folder that one harness at a time works in."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dist_checks.judging.judge import SCHEMA
from dist_checks.judging.reading import TraceError, read
from dist_checks.matrix import ConfigError
from dist_checks.rung import Phase, Rung
from dist_checks.trace import checksum, parse

LOCK = ".lock"
NEEDED = {"id", "status", "seconds"}
"""Of each rung in a report."""
ENDED = ("done", "failed", "timed_out")
"""States of a rung that has been run: the others are run again when a run is resumed."""


@contextmanager
def alone(folder: Path, *, new: bool) -> Iterator[None]:
    """Nobody else runs a ladder in ``folder`` meanwhile; ConfigError where somebody does, or where it is to be new
    and has been worked in. The lock goes with its process, however that ends."""
    path = folder / LOCK
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise ConfigError(f"--out: {folder} cannot be written: {error.strerror}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{folder}: another dist-checks is running in this folder") from None
        if new and (folder / "rungs").exists():
            raise ConfigError(f"--out: {folder} is not empty, and nothing in it is overwritten")
        yield
    finally:
        os.close(handle)


def read_json(path: Path) -> dict[str, Any]:
    """Raises ConfigError where the file is not there or no JSON object."""
    try:
        data = parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a JSON object")
    return data


def read_report(folder: Path) -> dict[str, Any]:
    """report.json of a judged run. Raises ConfigError where there is none, or one of another version."""
    path = folder / "report.json"
    report = read_json(path)
    if (found := report.get("schema")) != SCHEMA:
        raise ConfigError(
            f"{path} has schema {found!r}; this version reads schema {SCHEMA}: judge the run again with it, "
            f"dist-checks judge {folder}"
        )
    rungs = report.get("rungs")
    if not isinstance(rungs, list) or not all(isinstance(rung, dict) and rung.keys() >= NEEDED for rung in rungs):
        raise ConfigError(f"{path}: this is no report: it has no rungs")
    return report


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Raises OSError with the name of the file where that cannot be written."""
    new = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        new.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        new.replace(path)
    except OSError as error:
        new.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def phase_folder(run: Path, phase: Phase) -> Path:
    """Of the trace of a phase; of a rung that does not resume, that of the rung."""
    return run / "rungs" / phase.rung.id / phase.name


def is_ended(folder: Path, rung: Rung) -> bool:
    """The rung has been run, and what it recorded can be judged: its exit is known and its trace whole."""
    for phase in rung.phases:
        own = phase_folder(folder, phase)
        try:
            exit = read_json(own / "exit.json")
            whole = exit.get("checksum", checksum(exit)) == checksum(exit)
            if not whole or exit.get("state") not in ENDED:
                return False
            if exit["state"] != "done":
                return True  # what would have come after it never started
            if read(own, phase.rung.layout.world_size).cut:
                return False
        except (ConfigError, TraceError):
            return False
    return True
