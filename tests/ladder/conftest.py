"""Whole ladders in tests: one warm launcher for all of them, since a fork server need not start twice."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ladders import Ladder

from dist_checks import session
from dist_checks.launching import PRELOAD, PRELOAD_DEEPSPEED
from dist_checks.session import Outcome
from launch.local import LocalLauncher


@pytest.fixture(scope="session")
def launcher() -> Iterator[LocalLauncher]:
    with LocalLauncher(preload=(*PRELOAD, PRELOAD_DEEPSPEED)) as launcher:
        yield launcher


@pytest.fixture(autouse=True, scope="session")
def interruptible() -> None:
    """A shell that starts the tests in the background has them ignore Ctrl-C, and their children with them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def ladder(launcher: LocalLauncher, tmp_path: Path) -> Ladder:
    """Runs the values of ``axes`` and judges them; only what the test is about is on the ladder."""

    def run(axes: dict[str, Any], *, fault: str | None = None, select: str = "", **matrix: Any) -> Outcome:
        matrix = {"steps": 3, "launch": {"cold_twin": False, "deadline": 120.0}, **matrix, "axes": axes}
        runs = len(list(tmp_path.iterdir()))
        return session.run(matrix, out=tmp_path / f"run{runs}", fault=fault, select=select, launcher=launcher)

    return run
