"""Watches the processes of the tests, which write themselves down, see launch_entries.record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from launch import Exit, Job


def pids_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "pids"
    folder.mkdir(exist_ok=True)
    return folder


def recorded(tmp_path: Path) -> set[int]:
    """Processes that wrote themselves down."""
    return {int(file.name) for file in pids_folder(tmp_path).iterdir()}


def wait_for(tmp_path: Path, count: int, seconds: float = 20.0) -> set[int]:
    """Waits until `count` processes have been recorded."""
    until = time.monotonic() + seconds
    while len(found := recorded(tmp_path)) < count:
        assert time.monotonic() < until, f"only {len(found)} of {count} processes have started"
        time.sleep(0.01)
    return found


def assert_gone(pids: set[int], seconds: float = 2.0) -> None:
    """Not even zombies, after some seconds at most; but those that init has inherited are for init to reap."""
    until = time.monotonic() + seconds
    while left := {pid for pid in pids if state_of(pid)[:2] not in (["gone"], ["Z", "1"])}:
        assert time.monotonic() < until, f"still there: {[state_of(pid) for pid in left]}"
        time.sleep(0.01)


def state_of(pid: int) -> list[str]:
    """State, parent, ... as in proc(5), or 'gone'."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["gone"]


def only(exits: Iterator[Exit]) -> Exit:
    (found,) = exits
    return found


def order(job: Job, **more: Any) -> dict[str, Any]:
    """What an agent is told to start a job."""
    return {
        "do": "start",
        "job": job.name,
        "folder": str(job.folder),
        "ranks": list(range(job.world_size)),
        "world_size": job.world_size,
        "entry": job.entry,
        "payload": dict(job.payload),
        "argv": job.argv,
        "env": dict(job.env),
        "deadline": job.deadline,
        "cold": job.cold,
    } | more
