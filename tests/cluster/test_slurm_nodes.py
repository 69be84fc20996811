"""What is wrong with one node of a job: no room on its disk, not enough memory."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ways
from clusters import dist_checks, environment, exit_code, in_allocation, report, run, wait_until
from essence import hosts

pytestmark = pytest.mark.timeout(600)

MATRIX = """
steps = 4
options = {{ layers = 1 }}
axes = {{ dp_replicate = [2, 3] }}
recipe = "{recipe}"
[launch]
launcher = "slurm"
deadline = 120.0
ranks_per_node = 1
slots = 1
cold_twin = false
slurm = {{ nodes = 3, mem = "1500" }}
"""


def idle(node: str) -> bool:
    return node in run("sinfo", "--Node", "--noheader", "--states=idle", "--format=%N").split()


@pytest.fixture
def alone(slurm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """n3 sees neither the folder of the run nor more than 192 KiB of space for temporary files."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    own, out = tmp_path / "tmp", tmp_path / "run"
    for folder in (own, out):
        folder.mkdir()
    pid = Path(slurm).parent / "run" / "slurmd.n3.pid"
    slurmd = "/usr/sbin/slurmd -c -N n3"
    mounts = f"mount -t tmpfs -o size=192k tmpfs {own} && mount -t tmpfs -o size=4k tmpfs {out}"

    def replace(command: str) -> None:
        old = int(pid.read_text())
        os.kill(old, 15)
        wait_until(lambda: not Path(f"/proc/{old}").exists() or " Z " in Path(f"/proc/{old}/stat").read_text(), 20)
        subprocess.run(["bash", "-c", command], check=True, env=dict(os.environ))
        wait_until(lambda: idle("n3"), 40)

    replace(f"unshare --mount bash -c '{mounts} && exec {slurmd}'")
    monkeypatch.setenv("TMPDIR", str(own))
    try:
        yield out
    finally:
        replace(slurmd)


def test_a_full_disk_on_one_node(alone: Path, tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(MATRIX.format(recipe="gpt"))
    assert exit_code(in_allocation(alone, tmp_path / "m.toml", nodes=3)) == 3, Path(f"{alone}.log").read_text()
    placed, found = hosts(alone), report(alone)
    with_it = {rung for rung, names in placed.items() if "n3" in names}
    assert "dp_replicate3" in with_it
    statuses = {rung["id"]: rung["status"] for rung in found["rungs"]}
    assert {rung for rung, status in statuses.items() if status == "inconclusive"} == with_it
    assert {status for rung, status in statuses.items() if rung not in with_it} == {"pass"}
    exit: dict[str, Any] = json.loads((alone / "rungs" / "dp_replicate3" / "exit.json").read_text())
    assert exit["state"] == "lost"
    assert exit["error"].startswith("a disk of n3 is full: ")


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Slurm that ends what uses more memory than it has asked for."""
    if not os.access("/sys/fs/cgroup/memory/cgroup.procs", os.W_OK):
        pytest.skip("no memory cgroup (version 1) can be made here")
    monkeypatch.setenv("SLURM_DEV_MEMORY", "1")
    with ways.slurm():
        yield


def test_a_rank_that_is_out_of_memory(strict: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel ends it, and its agent sees that; the rung failed, as its axis needs what no node has."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(Path(__file__).parent), environment()["PYTHONPATH"])))
    (tmp_path / "m.toml").write_text(MATRIX.format(recipe="eating_recipe:Eats"))
    out = tmp_path / "run"
    ended = dist_checks("run", tmp_path / "m.toml", "--out", out)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert report(out)["sentence"] == "FAIL broken: dp_replicate (alone; 3 fails, 2 passes)"
    exit = json.loads((out / "rungs" / "dp_replicate3" / "exit.json").read_text())
    assert (exit["state"], exit["first_failed"], exit["ranks"][1]["signal"]) == ("failed", 1, 9)
    [message] = [
        f["message"] for f in report(out)["findings"] if (f["rung"], f["check"]) == ("dp_replicate3", "completes")
    ]
    assert "the kernel has ended 1 process of this host for lack of memory meanwhile" in message
