"""One matrix here, submitted to Slurm, and inside an allocation: the same report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from clusters import MATRIX, dist_checks, exit_code, in_allocation, over, report, wait_until
from essence import essence, hosts

from launch.sbatch import submit
from launch.scontrol import SlurmError

pytestmark = [pytest.mark.usefixtures("slurm"), pytest.mark.timeout(900)]

FAULT = ("--fault", "O22", "-k", "tp2+sp")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("local") / "run"
    ended = dist_checks("run", MATRIX, "--out", out)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return out


def test_from_outside_the_report_is_that_of_this_machine(local: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    ended = dist_checks("run", MATRIX, "--launcher", "slurm", "--slurm", "mem=2000", "--out", out)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert essence(out) == essence(local)
    assert len(report(out)["rungs"]) >= 12
    placed = hosts(out)
    assert {1, 4} <= {len(set(names)) for names in placed.values()}  # between them, what was free at the moment
    assert placed["dp_replicate4+tp2"] == ["n1", "n1", "n2", "n2", "n3", "n3", "n4", "n4"]
    assert "12 ranks" not in ended.stderr
    assert "is RUNNING" in ended.stderr or "done" in ended.stderr


def test_from_inside_the_report_is_that_of_this_machine(local: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert exit_code(in_allocation(out, MATRIX)) == 0, Path(f"{out}.log").read_text()
    assert essence(out) == essence(local)


def test_a_planted_fault_is_blamed_the_same(tmp_path: Path) -> None:
    found = {}
    for launcher in ("local", "slurm"):
        out = tmp_path / launcher
        ended = dist_checks("run", MATRIX, "--launcher", launcher, *FAULT, "--out", out)
        assert ended.returncode == 1, ended.stdout + ended.stderr
        assert ended.stdout.splitlines()[-1] == "FAIL broken: sp (alone)"
        found[launcher] = essence(out)
    assert found["slurm"] == found["local"]
    first = next(f for f in report(tmp_path / "slurm")["findings"] if f["status"] == "fail")
    assert set(first["hosts"]) <= {"n1", "n2", "n3", "n4"}
    assert first["hosts"]


def test_detached_it_is_judged_later(tmp_path: Path) -> None:
    out = tmp_path / "run"
    ended = dist_checks("run", MATRIX, "--launcher", "slurm", "--detach", "-k", "accum2", "--out", out)
    assert ended.returncode == 0, ended.stderr
    job = json.loads((out / "slurm.json").read_text())["job"]
    assert ended.stdout.startswith(f"Slurm job {job} submitted")
    early = dist_checks("judge", out)
    assert early.returncode == 3
    assert f"Slurm job {job} is " in early.stderr
    wait_until(lambda: over(job))
    assert dist_checks("judge", out).returncode == 0


def test_what_slurm_refuses_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    words = ("--launcher", "slurm", "--slurm", "partition=nowhere", "-k", "accum2")
    ended = dist_checks("run", MATRIX, *words, "--out", tmp_path / "run")
    assert ended.returncode == 2
    assert "launch.slurm: Slurm refuses the job: invalid partition specified: nowhere" in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_a_key_that_is_not_known_is_told_before_anything_starts() -> None:
    ended = dist_checks("run", MATRIX, "--launcher", "slurm", "--slurm", "partitoin=main")
    assert ended.returncode == 2
    assert ended.stderr.strip() == "the command line: launch.slurm.partitoin: this key is not known"


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--nodes=9", "Node count specification invalid"),
        ("--mem=900G", "Requested node configuration is not available"),
        ("--constraint=moon", "Invalid feature specification"),
        ("--gres=gpu:9", "Requested node configuration is not available"),
        ("--nodelist=n9", "Invalid node name specified"),
    ],
)
def test_slurm_says_why_it_refuses(option: str, message: str) -> None:
    with pytest.raises(SlurmError, match=message):
        submit("#!/bin/sh\ntrue\n", [option, "--output=/dev/null"])
