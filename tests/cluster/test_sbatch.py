"""The batch scripts, each submitted as its first lines say, on small ladders."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import parts
import psutil
import pytest
from clusters import MATRIX, PYTHON, ROOT, exit_code, in_allocation, report, run, wait_until
from essence import hosts

from launch.scontrol import fields

pytestmark = [pytest.mark.usefixtures("slurm"), pytest.mark.timeout(600)]

ONE_NODE = ["exit.json", "job.json", "ranks-00000-00001.zip"]
"""The files of a rung of two ranks on one node."""
FEW = "dp_replicate4 and not tp2 and not accum2"


def sentence(out: Path) -> str:
    return str(report(out)["sentence"])


def test_one_rung(tmp_path: Path) -> None:
    out = tmp_path / "run"
    job = in_allocation(out, "tp2+sp", MATRIX, script="rung", nodes=1)
    assert exit_code(job) == 0, Path(f"{out}.log").read_text()
    assert sorted(path.name for path in (out / "rungs" / "tp2+sp").iterdir()) == ONE_NODE
    assert {rung["id"] for rung in report(out)["rungs"] if rung["role"] == "rung"} == {"tp2", "tp2+sp"}


def test_one_rung_needs_a_name(tmp_path: Path) -> None:
    script = ROOT / "slurm" / "rung.sbatch"
    options = ("--parsable", "--cpus-per-task=1", "--mem=100", f"--output={tmp_path / 'log'}")
    assert exit_code(run("sbatch", *options, script)) not in (0, 3)
    assert "usage: sbatch rung.sbatch RUNG matrix.toml" in (tmp_path / "log").read_text()


def test_every_night(tmp_path: Path) -> None:
    """It submits itself for the next one, with the same options, and keeps the runs where it is told."""
    script = ROOT / "slurm" / "nightly.sbatch"
    options = ("--parsable", "--cpus-per-task=2", "--time=9", "--mem=500", "--gres=gpu:2", f"--output={tmp_path}/log")
    env = {"DIST_CHECKS": " ".join(PYTHON), "DIST_CHECKS_RUNS": str(tmp_path)}
    job = run("sbatch", *options, script, MATRIX, "-k", FEW, **env)
    try:
        assert exit_code(job) == 0, (tmp_path / "log").read_text()
        again = run("squeue", "--noheader", "--name=dist-checks-nightly", "--format=%i").split()
        assert len(again) == 1
        found = fields(run("scontrol", "-o", "show", "job", again[0]))
    finally:
        subprocess.run(["scancel", "--name=dist-checks-nightly"], check=False)
    assert sentence(tmp_path / "runs" / "latest").startswith("PASS 1 rung")
    assert set(hosts(tmp_path / "runs" / "latest")["dp_replicate4"]) == {"n1", "n2"}
    assert re.search(r"T02:00:00$", found["EligibleTime"])
    assert found["JobState"] == "PENDING"
    assert (found["NumNodes"], found["MinCPUsNode"], found["MinMemoryNode"]) == ("2-2", "2", "500M")
    assert (found["TimeLimit"], found["TresPerNode"]) == ("00:09:00", "gres:gpu:2")
    assert found["Command"].startswith(f"{script} {MATRIX}")


@pytest.mark.timeout(900)
def test_ray_inside_an_allocation(tmp_path: Path) -> None:
    """No process of it is there afterwards."""
    parts.need("ray")
    out = tmp_path / "run"
    job = in_allocation(out, MATRIX, "-k", FEW, script="ray", nodes=2)
    assert exit_code(job) == 0, Path(f"{out}.log").read_text()
    assert sentence(out).startswith("PASS 1 rung")
    assert len(set(hosts(out)["dp_replicate4"])) == 2

    def left() -> list[str]:
        found = []
        for process in psutil.process_iter(["cmdline", "environ"]):
            if (process.info["environ"] or {}).get("SLURM_JOB_ID") == job and process.pid != os.getpid():
                found.append(" ".join(process.info["cmdline"] or ()))
        return found

    wait_until(lambda: not left(), 15)
