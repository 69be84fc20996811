"""What is lost in a cluster makes its rungs inconclusive; the others go on, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from clusters import environment, in_allocation, ours, over, report, run, wait_until

from dist_checks.judging.files import parts

pytestmark = [pytest.mark.usefixtures("slurm"), pytest.mark.timeout(900)]

SLOW = """
steps = {steps}
options = {{ layers = 1 }}
axes = {{ dp_replicate = [2, 3], tp = 2 }}
combine = {{ mode = "singles" }}
launch = {{ deadline = 300.0, ranks_per_node = 1, slots = 1, cold_twin = false }}
"""


def processes(word: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(word in part for part in process.info["cmdline"] or ()) and process.pid != os.getpid():
            found.append(process)
    return found


def agents(out: Path, node: str = "") -> list[psutil.Process]:
    """Of the run in `out`, by the environment that its batch job has handed on."""
    found = []
    for process in processes("launch.outpost"):
        try:
            mine = process.environ().get("TEST_RUN") == str(out)
        except psutil.Error:
            continue
        if mine and process.name() != "srun" and (not node or f"--name={node}" in process.cmdline()):
            found.append(process)
    # Ranks are forked from an agent and look like it.
    return [process for process in found if process.ppid() not in {other.pid for other in found}]


def started(out: Path, rung: str) -> bool:
    """Every rank of it has begun, which its first line says."""
    events = list((out / "rungs" / rung).glob("rank-*.jsonl"))
    return len(events) == 3 - (rung == "single") * 2 and all(b"\n" in path.read_bytes() for path in events)


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Submits a run inside an allocation; returns its folder and the job's id."""

    jobs = []

    def submit(steps: int = 60, nodes: int = 3) -> tuple[Path, str]:
        matrix = tmp_path / "m.toml"
        matrix.write_text(SLOW.format(steps=steps))
        monkeypatch.setenv("TEST_RUN", str(tmp_path / "run"))
        jobs.append(in_allocation(tmp_path / "run", matrix, nodes=nodes))
        return tmp_path / "run", jobs[-1]

    yield submit
    for job in jobs:
        subprocess.run(["scancel", job], check=False)


def statuses(out: Path) -> dict[str, str]:
    return {rung["id"]: rung["status"] for rung in report(out)["rungs"]}


def completes(out: Path, rung: str) -> str:
    [finding] = [f for f in report(out)["findings"] if (f["rung"], f["check"]) == (rung, "completes")]
    return str(finding["message"])


def finished(out: Path, job: str) -> None:
    wait_until(lambda: over(job), 600)
    log = Path(f"{out}.log").read_text()
    assert (out / "report.json").exists(), log
    wait_until(lambda: not ours(str(out)), 15)


def test_a_node_that_dies_takes_its_rungs_with_it_and_no_others(begin: Any, slurm: str) -> None:
    """slurmd, its steps and the ranks of n3, all at once, as when a machine goes away."""
    out, job = begin()
    wait_until(lambda: started(out, "dp_replicate3"))
    folder = Path(slurm).parent
    slurmd = int((folder / "run" / "slurmd.n3.pid").read_text())
    [agent] = agents(out, "n3")
    step = agent.parent()
    assert step is not None
    for process in (psutil.Process(slurmd), step, *agent.children(recursive=True), agent):
        process.send_signal(signal.SIGKILL)
    try:
        finished(out, job)
    finally:
        subprocess.run(["/usr/sbin/slurmd", "-c", "-N", "n3"], check=True, env=os.environ)
    found = statuses(out)
    assert found["dp_replicate3"] == "inconclusive"
    assert "node n3 was lost" in completes(out, "dp_replicate3")
    assert [found[id] for id in ("single", "dp_replicate2", "tp2", "single@again")] == ["pass"] * 4
    assert report(out)["status"] == "inconclusive"
    wait_until(lambda: "n3" in run("sinfo", "--Node", "--noheader", "--states=idle", "--format=%N"), 40)


def test_a_node_that_is_set_down_is_lost(begin: Any) -> None:
    out, job = begin()
    wait_until(lambda: started(out, "dp_replicate3"))
    run("scontrol", "update", "node=n2", "state=down", "reason=test")
    try:
        finished(out, job)
    finally:
        # It may have come back by itself by now.
        subprocess.run(["scontrol", "update", "node=n2", "state=resume"], capture_output=True, check=False)
        wait_until(lambda: "n2" in run("sinfo", "--Node", "--noheader", "--states=idle", "--format=%N"), 40)
    found = statuses(out)
    assert found["dp_replicate3"] == "inconclusive"
    assert found["single"] == "pass"
    assert "fail" not in found.values()


def test_a_cancelled_job_judges_what_had_ended(begin: Any) -> None:
    out, job = begin(steps=60)
    wait_until((out / "rungs" / "single" / "exit.json").exists)
    run("scancel", job)
    finished(out, job)
    found = statuses(out)
    assert found["single"] == "pass"
    assert "inconclusive" in found.values()
    assert "fail" not in found.values()
    cut = [id for id, status in found.items() if status == "inconclusive"]
    assert any(f"Slurm job {job} was cancelled" in completes(out, id) for id in cut)


def test_an_agent_that_is_killed_comes_again(begin: Any) -> None:
    """Its rung is lost, but the node is not: what is still to run may run there."""
    out, job = begin(steps=40, nodes=1)
    wait_until(lambda: started(out, "single"))
    [agent] = agents(out)
    agent.kill()
    finished(out, job)
    found = statuses(out)
    lost = [rung for rung in found if json.loads((out / "rungs" / rung / "exit.json").read_text())["state"] == "lost"]
    assert len(lost) == 1
    assert "was lost" in completes(out, lost[0])
    done = [rung for rung in found if json.loads((out / "rungs" / rung / "exit.json").read_text())["state"] == "done"]
    assert len(done) == len(found) - 1


def test_a_rank_that_is_killed_is_a_failure_and_its_peers_elsewhere_are_ended(begin: Any) -> None:
    out, job = begin(steps=60)
    wait_until(lambda: started(out, "dp_replicate3"))
    header = json.loads((out / "rungs" / "dp_replicate3" / "rank-00001.jsonl").read_text().splitlines()[0])
    psutil.Process(header["pid"]).kill()
    finished(out, job)
    exit = json.loads((out / "rungs" / "dp_replicate3" / "exit.json").read_text())
    assert exit["state"] == "failed"
    assert exit["first_failed"] == 1
    assert statuses(out)["dp_replicate3"] == "fail"
    assert statuses(out)["dp_replicate2"] == "pass"


def test_a_folder_that_nodes_cannot_see(begin: Any, tmp_path: Path) -> None:
    """Traces come back through the launcher, as if every rank had written them here."""
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    matrix = tmp_path / "small.toml"
    matrix.write_text(SLOW.format(steps=2))
    script = (
        "from pathlib import Path; import sys; import dist_checks.session as s\n"
        "import launch.cluster_run as c; c.stamp = lambda folder: 'of another machine'\n"
        "from dist_checks.matrix import load\n"
        f"m = load(Path({str(matrix)!r}))\n"
        "from dataclasses import replace\n"
        "m = replace(m, launch=replace(m.launch, launcher='slurm'))\n"
        f"print(s.run(m, out=Path({str(hidden / 'run')!r})).report['sentence'])\n"
    )
    ended = subprocess.run(
        ["salloc", "--nodes=2", "--cpus-per-task=2", "--mem=1000", "--no-kill", sys.executable, "-P", "-c", script],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.stdout.strip().endswith("PASS 3 rungs equal to one device"), ended.stdout + ended.stderr
    found = parts(hidden / "run" / "rungs" / "dp_replicate2")
    assert found["rank-00001.digests"].size > 1000
    assert {part.path.name for part in found.values()} == {"ranks-00000-00000.zip", "ranks-00001-00001.zip"}
    assert "rank-00001.log" in found
