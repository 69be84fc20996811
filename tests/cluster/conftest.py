"""A real Slurm of four nodes, for the tests of one session."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import parts
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True, scope="session")
def interruptible() -> None:
    """A shell that starts the tests in the background has them ignore Ctrl-C, and their children with them."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def slurm_conf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The path of its configuration."""
    parts.need("slurm")
    env = {**os.environ, "SLURM_DEV": str(tmp_path_factory.mktemp("slurm"))}
    up = subprocess.run([ROOT / "slurm/dev/up"], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert up.returncode == 0, up.stderr
    try:
        yield up.stdout.strip().removeprefix("export SLURM_CONF=")
    finally:
        subprocess.run([ROOT / "slurm/dev/down"], env=env, capture_output=True, timeout=60, check=True)


@pytest.fixture
def slurm(slurm_conf: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Commands of Slurm, and what a test starts, talk to it."""
    monkeypatch.setenv("SLURM_CONF", slurm_conf)
    return slurm_conf
