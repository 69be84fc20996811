"""A harness that is killed leaves no rank, a folder that can be judged, and work that need not be done again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from dist_checks import resuming, session
from dist_checks.judging.verdict import ExitCode
from dist_checks.matrix import ConfigError

MATRIX = "steps = 10\n[options]\nlayers = 1\n[axes]\ndp_replicate = [2, 3]\n[launch]\ncold_twin = false\n"


def start(tmp_path: Path, out: Path) -> subprocess.Popen[bytes]:
    (tmp_path / "m.toml").write_text(MATRIX)
    command = [sys.executable, "-m", "dist_checks", "run", str(tmp_path / "m.toml"), "--out", str(out)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


def until(condition: Any, seconds: float = 240) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("victim", ["harness", "agent"])
def test_killed_and_resumed(tmp_path: Path, launcher: Any, victim: str) -> None:
    out = tmp_path / "run"
    harness = start(tmp_path, out)
    try:
        until((out / "rungs" / "single" / "exit.json").exists)
        started = psutil.Process(harness.pid).children(recursive=True)
        [agent] = psutil.Process(harness.pid).children()
        with pytest.raises(ConfigError, match="another dist-checks is running in this folder"):
            resuming.resume(out, launcher=launcher)
        os.kill(harness.pid if victim == "harness" else agent.pid, signal.SIGKILL)
        until(lambda: not any(map(is_alive, started)), 30)
        harness.wait(240)
    finally:
        harness.kill()
        harness.wait()
    judged = session.Outcome(report=session.judge(out), folder=out)
    kept = (out / "rungs" / "single" / "exit.json").stat()
    if victim == "harness":
        assert judged.exit_code() is ExitCode.INCONCLUSIVE
    assert "fail" not in {rung["status"] for rung in judged.report["rungs"]}
    outcome = resuming.resume(out, launcher=launcher)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    assert (out / "rungs" / "single" / "exit.json").stat() == kept, "it was not run again"
    again = resuming.resume(out, launcher=launcher)
    assert again.report == outcome.report


def test_resuming_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this is no run folder"):
        resuming.resume(tmp_path)
