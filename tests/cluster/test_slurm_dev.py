"""slurm/dev brings up a Slurm that behaves like those of real clusters, and takes all of it down."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import parts
import psutil

ROOT = Path(__file__).parents[2]


def run(*argv: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def of(conf: str) -> list[str]:
    """Command lines of the processes that work for a Slurm."""
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        environ, words = process.info["environ"] or {}, process.info["cmdline"] or []
        if environ.get("SLURM_CONF") == conf or any(str(Path(conf).parent) in word for word in words):
            found.append(" ".join(words))
    return found


def test_four_nodes_run_a_step_each(slurm: str) -> None:
    ended = run("srun", "--nodes=4", "--mem=10", "printenv", "SLURMD_NODENAME")
    assert sorted(ended.stdout.split()) == ["n1", "n2", "n3", "n4"], ended.stderr


def test_devices_are_handed_out(slurm: str) -> None:
    ended = run("srun", "--gres=gpu:2", "--mem=10", "printenv", "CUDA_VISIBLE_DEVICES")
    assert ended.stdout.strip() == "0,1", ended.stderr


def test_down_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    """With a job that is running."""
    parts.need("slurm")
    folder = tmp_path / "slurm"
    up = run(ROOT / "slurm/dev/up", SLURM_DEV=str(folder))
    assert up.returncode == 0, up.stderr
    conf = up.stdout.strip().removeprefix("export SLURM_CONF=")
    try:
        submitted = run("sbatch", "--output=/dev/null", "--wrap=sleep 300", SLURM_CONF=conf)
        assert submitted.returncode == 0, submitted.stderr
        assert len(of(conf)) >= 6
    finally:
        down = run(ROOT / "slurm/dev/down", SLURM_DEV=str(folder))
    assert down.returncode == 0, down.stderr
    assert not of(conf)
    assert not folder.exists()
