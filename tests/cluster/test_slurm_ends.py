"""How a job ends that Slurm ends: each in its own words, from inside and from outside, and nothing is left."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from clusters import PYTHON, environment, in_allocation, ours, over, report, run, wait_until

pytestmark = [pytest.mark.usefixtures("slurm"), pytest.mark.timeout(600)]

WAITS = """
recipe = "eating_recipe:Waits"
steps = 2
options = {{ layers = 1 }}
axes = {{ dp_replicate = 2 }}
[launch]
launcher = "{launcher}"
deadline = 500.0
ranks_per_node = 1
slots = 1
cold_twin = false
slurm = {{ nodes = 2, mem = "1000", time = "00:{minutes:02}:00", wait = {wait} }}
"""


@pytest.fixture
def matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where it is going to be; nothing of the run is there when the test is over."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(Path(__file__).parent), environment()["PYTHONPATH"])))
    monkeypatch.setenv("TEST_RUN", str(tmp_path))
    yield tmp_path / "m.toml"
    wait_until(lambda: not ours(str(tmp_path)), 15)


def submit(matrix: Path, launcher: str = "slurm", minutes: int = 10, wait: float = 600.0) -> subprocess.Popen[str]:
    """A run from outside."""
    matrix.write_text(WAITS.format(launcher=launcher, minutes=minutes, wait=wait))
    command = [*PYTHON, "run", str(matrix), "--out", str(matrix.parent / "run")]
    return subprocess.Popen(
        command,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def waiting(out: Path) -> bool:
    return (out / "rungs" / "single" / "exit.json").exists() and (out / "rungs" / "dp_replicate2" / "job.json").exists()


def message(out: Path, rung: str = "dp_replicate2") -> str:
    [found] = [f["message"] for f in report(out)["findings"] if (f["rung"], f["check"]) == (rung, "completes")]
    return str(found)


def statuses(out: Path) -> dict[str, str]:
    return {rung["id"]: rung["status"] for rung in report(out)["rungs"]}


def job_of(out: Path) -> str:
    return str(json.loads((out / "slurm.json").read_text())["job"])


def test_a_job_that_never_starts(matrix: Path) -> None:
    words = 'sbatch = ["--begin=now+1hour"], wait ='
    out, harness = matrix.parent / "run", None
    matrix.write_text(WAITS.format(launcher="slurm", minutes=5, wait=3.0).replace("wait =", words))
    harness = subprocess.run(
        [*PYTHON, "run", str(matrix), "--out", str(out)], capture_output=True, text=True, timeout=400, check=False
    )
    assert harness.returncode == 3, harness.stdout + harness.stderr
    assert "is PENDING (BeginTime): cancelled, since it has waited for 3 s" in harness.stderr
    assert f"Slurm job {job_of(out)} was cancelled before this rung was started" in message(out)
    assert set(statuses(out).values()) == {"inconclusive"}
    assert over(job_of(out))


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_a_job_that_is_preempted(matrix: Path, where: str) -> None:
    """What had ended counts."""
    out, harness = matrix.parent / "run", None
    if where == "outside":
        harness = submit(matrix)
    else:
        matrix.write_text(WAITS.format(launcher="slurm", minutes=10, wait=600.0))
        job = in_allocation(out, matrix, nodes=2)
    wait_until(lambda: waiting(out), 300)
    run("srun", "--partition=urgent", "--nodes=4", "--cpus-per-task=4", "--mem=0", "true")
    if harness is not None:
        said, _ = harness.communicate(timeout=300)
        assert harness.returncode == 3, said
        job = job_of(out)
    wait_until(lambda: over(job), 60)
    assert f"Slurm job {job} was preempted" in message(out)
    assert (statuses(out)["single"], statuses(out)["dp_replicate2"]) == ("pass", "inconclusive")
    assert report(out)["status"] == "inconclusive"


def test_a_job_at_its_time_limit_is_no_failure(matrix: Path) -> None:
    """From inside: Slurm warns, and what had ended is judged before it ends the job."""
    out = matrix.parent / "run"
    matrix.write_text(WAITS.format(launcher="slurm", minutes=1, wait=600.0))
    job = in_allocation(out, matrix, nodes=2, minutes=4)  # the batch script is warned two minutes before
    wait_until(lambda: over(job), 400)
    assert f"the time limit of Slurm job {job} (00:04:00) was near" in message(out)
    assert (statuses(out)["single"], statuses(out)["dp_replicate2"]) == ("pass", "inconclusive")


def test_a_job_that_slurm_ends_at_its_limit(matrix: Path) -> None:
    """From outside, without a warning: the limit is shorter than it."""
    out, harness = matrix.parent / "run", submit(matrix, minutes=1)
    said, _ = harness.communicate(timeout=400)
    assert harness.returncode == 3, said
    known = (f"Slurm job {job_of(out)} was ended at its time limit (00:01:00)", "the time limit of Slurm job")
    assert any(words in message(out) for words in known)
    assert statuses(out)["dp_replicate2"] == "inconclusive"


def test_the_node_of_the_harness_is_lost(matrix: Path) -> None:
    """From outside: the job's first node goes, and the harness with it; what it had judged so far is kept."""
    out, harness = matrix.parent / "run", submit(matrix)
    wait_until(lambda: waiting(out), 300)
    run("scontrol", "update", "node=n1", "state=down", "reason=test")
    try:
        said, _ = harness.communicate(timeout=300)
    finally:
        wait_until(lambda: "n1" in run("sinfo", "--Node", "--noheader", "--states=idle", "--format=%N"), 60)
    assert harness.returncode == 3, said
    assert f"Slurm job {job_of(out)} has failed: its first node n1 was lost" in message(out)
    assert (statuses(out)["single"], statuses(out)["dp_replicate2"]) == ("pass", "inconclusive")
