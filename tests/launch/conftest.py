"""Jobs whose entries are in launch_entries.py, run with a short deadline and looked after."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from launch_watching import assert_gone, pids_folder, recorded

from launch import Job, LocalLauncher

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks find the entries, and every Python that a test starts finds the package."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(HERE), str(ROOT))))


@pytest.fixture(autouse=True, scope="session")
def interruptible() -> None:
    """A shell that starts the tests in the background has them ignore Ctrl-C, and their children with them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Job]:
    """Makes a job from the name of an entry; `recorded` finds the processes that it writes down."""

    def make(entry: str = "", *, name: str = "job", world_size: int = 2, **rest: Any) -> Job:
        payload = {"pids": str(pids_folder(tmp_path))} | rest.pop("payload", {})
        entry = entry and f"launch_entries:{entry}"
        rest = {"deadline": 20.0} | rest
        return Job(name=name, folder=tmp_path / name, world_size=world_size, entry=entry, payload=payload, **rest)

    return make


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[LocalLauncher]:
    """Without preload. Nothing that it started is left when the test is over."""
    with LocalLauncher(slots=4) as launcher:
        yield launcher
    assert_gone(recorded(tmp_path))
