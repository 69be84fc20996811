"""One matrix on Ray: all of it on a cluster of three nodes, parts embedded and as a Ray job; what is lost there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import parts
import psutil
import pytest
from clusters import MATRIX, PYTHON, dist_checks, environment, report, wait_until
from essence import essence, hosts

pytestmark = pytest.mark.timeout(900)

SMALL = ("-k", "dp_replicate4+accum2 or tp2+sp")
FAULT = ("--fault", "O22", "-k", "tp2+sp")


@pytest.fixture(autouse=True, scope="module")
def needed() -> None:
    parts.need("ray")
    os.environ["RAY_AUTH_MODE"] = "disabled"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("local") / "run"
    ended = dist_checks("run", MATRIX, "--out", out)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return out


def agrees(out: Path, local: Path) -> bool:
    """What a part of the matrix gives is what the whole gave; a rung is only started cold in one of them."""
    part, whole = essence(out), essence(local)
    warm = [rung for rung in part["statuses"] if not rung.endswith("@cold")]
    assert len(warm) >= 5
    same = (part[what][rung] == whole[what][rung] for what in ("statuses", "weights") for rung in warm)
    return all(same) and (part["status"], part["broken"]) == (whole["status"], whole["broken"])


@pytest.fixture(scope="module")
def three() -> Iterator[object]:
    from raying import cluster

    with cluster(3) as made:
        yield made


def test_embedded_the_report_is_that_of_this_machine(local: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    before = {process.pid for process in psutil.process_iter() if process.name() == "raylet"}
    ended = dist_checks("run", MATRIX, *SMALL, "--launcher", "ray", "--out", out)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert agrees(out, local)
    wait_until(lambda: {process.pid for process in psutil.process_iter() if process.name() == "raylet"} <= before, 10)


def test_what_the_cluster_lacks_is_one_line(tmp_path: Path) -> None:
    words = ("--launcher", "ray", "--ray", "nodes=2", "--ray", "wait=2", "--ray", "cpus_per_node=1")
    ended = dist_checks("run", MATRIX, *words, "--out", tmp_path / "run")
    assert ended.returncode == 2
    assert "Ray had no room within 2 s for 2 agents with 1 CPU, each on a node of its own" in ended.stderr
    assert "the cluster has 1 nodes" in ended.stderr


def test_on_three_nodes_the_report_is_that_of_this_machine(local: Path, three: object, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ("--launcher", "ray", "--ray", f"address={three.address}")  # type: ignore[attr-defined]
    ended = dist_checks("run", MATRIX, *words, "--out", out)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert essence(out) == essence(local)
    assert len(hosts(out)) >= 12
    assert {name for names in hosts(out).values() for name in names} == {"r1", "r2", "r3"}


@pytest.mark.parametrize(("words", "code"), [(SMALL, 0), (FAULT, 1)])
def test_as_a_ray_job_the_verdict_is_the_exit_code_of_the_driver(
    local: Path, three: object, tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    from ray.job_submission import JobStatus, JobSubmissionClient

    out = tmp_path / "run"
    client = JobSubmissionClient(three.dashboard)  # type: ignore[attr-defined]
    quoted = " ".join(
        f"'{word}'" for word in (*PYTHON, "run", str(MATRIX), "--launcher", "ray", "--out", str(out), *words)
    )
    job = client.submit_job(entrypoint=quoted, runtime_env={"env_vars": {"PYTHONPATH": environment()["PYTHONPATH"]}})
    wait_until(lambda: client.get_job_status(job).is_terminal(), 800)
    assert client.get_job_info(job).driver_exit_code == code, client.get_job_logs(job)
    assert (client.get_job_status(job) is JobStatus.SUCCEEDED) == (code == 0)
    if code == 0:
        assert agrees(out, local)
    else:
        assert report(out)["sentence"] == "FAIL broken: sp (alone)"


LONG = """
steps = 60
options = { layers = 1 }
axes = { dp_replicate = [2, 3] }
combine = { mode = "singles" }
launch = { launcher = "ray", deadline = 300.0, ranks_per_node = 1, slots = 1, cold_twin = false }
"""


@pytest.mark.parametrize("what", ["worker", "raylet", "head"])
def test_what_dies_with_its_node_is_lost_and_the_others_go_on(three: object, tmp_path: Path, what: str) -> None:
    """Last in this file, in this order: a raylet that is killed does not come again, and without a head nothing is."""
    (tmp_path / "m.toml").write_text(LONG)
    out, node = tmp_path / "run", {"worker": "r2", "raylet": "r3", "head": "r1"}[what]
    words = ("run", tmp_path / "m.toml", "--ray", f"address={three.address}", "--out", out)  # type: ignore[attr-defined]
    if what == "worker":
        words = (*words, "--ray", "nodes=3")
    harness = subprocess.Popen(
        [*PYTHON, *map(str, words)],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    last = "dp_replicate2" if what == "head" else "dp_replicate3"
    try:
        rung = out / "rungs" / last
        wait_until(lambda: any(rung.glob("rank-*.jsonl")))
        everywhere = agents()
        [agent] = [p for p in everywhere if f"--name={node}" in p.cmdline()]
        victims = [agent.parent()]
        if what == "raylet":
            victims = [three.raylet(node)]  # type: ignore[attr-defined]
        elif what == "head":
            victims = three.processes(node)  # type: ignore[attr-defined]
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.send_signal(signal.SIGKILL)
        said, _ = harness.communicate(timeout=300)
    finally:
        harness.kill()
        harness.communicate()
    assert harness.returncode == 3, said
    found = {each["id"]: each["status"] for each in report(out)["rungs"]}
    exit = json.loads((rung / "exit.json").read_text())
    assert exit["state"] == "lost", exit
    assert f"node {node} was lost" in exit["error"]
    assert found[last] == "inconclusive"
    assert found["single"] == "pass"
    psutil.wait_procs([agent] if what != "head" else everywhere, timeout=15)
    assert not agent.is_running()
    assert what != "head" or not agents()


def agents() -> list[psutil.Process]:
    """On this machine; ranks are forked from an agent and look like it."""
    found = [p for p in psutil.process_iter(["cmdline"]) if "launch.outpost" in (p.info["cmdline"] or ())]
    return [p for p in found if p.ppid() not in {other.pid for other in found}]
