"""How tests run a matrix somewhere, by the command line that users have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
MATRIX = Path(__file__).with_name("six.toml")
PYTHON = [sys.executable, "-P", "-m", "dist_checks"]


def environment() -> dict[str, str]:
    """With the package on the path, besides what a test has put there."""
    path = [os.environ.get("PYTHONPATH", ""), str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, path)))}


def dist_checks(*words: str | Path, timeout: float = 800) -> subprocess.CompletedProcess[str]:
    command = [*PYTHON, *map(str, words)]
    ended = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=timeout, check=False, cwd="/"
    )
    if ended.returncode in (2, 4):  # so that a test that expected something else shows it
        print(ended.stderr[-4000:], file=sys.stderr)
    return ended


def run(*argv: str | Path, timeout: float = 60, **env: str) -> str:
    """Standard output; fails where the command does."""
    ended = subprocess.run(
        list(map(str, argv)), env={**environment(), **env}, capture_output=True, text=True, timeout=timeout, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def wait_until(condition: Callable[[], Any], seconds: float = 400) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come about"
        time.sleep(0.1)


def in_allocation(out: Path, *words: str | Path, nodes: int = 4, script: str = "matrix", minutes: int = 10) -> str:
    """Submits a batch script of users; returns the job's id."""
    options = [
        "--parsable",
        f"--nodes={nodes}",
        "--cpus-per-task=2",
        f"--time={minutes}",
        f"--output={out}.log",
        "--mem=0",
    ]
    words = (ROOT / "slurm" / f"{script}.sbatch", *words, "--out", out)
    return run("sbatch", *options, *words, DIST_CHECKS=" ".join(PYTHON), RAY=f"{Path(sys.executable).parent}/ray")


def exit_code(job: str) -> int:
    """Of its script, once it is over."""
    wait_until(lambda: over(job), 800)
    return int(run("scontrol", "-o", "show", "job", job).partition("ExitCode=")[2].partition(":")[0])


def over(job: str) -> bool:
    return not run("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T").startswith(
        ("PENDING", "RUNNING", "COMPLETING")
    )


def report(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "report.json").read_text())
    return found


def ours(mark: str) -> list[str]:
    """Processes of any kind that have this mark in their environment: what a run has started hands it on."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ", "status"]):
        mine = (process.info["environ"] or {}).get("TEST_RUN") == mark
        if mine and process.pid != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(" ".join(process.info["cmdline"] or ()))
    return found
