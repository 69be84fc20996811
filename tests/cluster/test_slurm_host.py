"""A node that computes wrongly, under the real Slurm: the verdict names it, and without it the same rungs pass."""

from __future__ import annotations

from pathlib import Path

import pytest
from clusters import dist_checks, report
from essence import hosts

pytestmark = [pytest.mark.usefixtures("slurm"), pytest.mark.timeout(900)]

MATRIX = """
steps = 2
options = { layers = 2 }
axes = { dp_replicate = [2, 3], dp_shard = [2], tp = 2 }
combine = { mode = "singles" }
[launch]
launcher = "slurm"
deadline = 120.0
ranks_per_node = 2
slots = 2
cold_twin = false
slurm = { nodes = 4 }
"""


def test_the_verdict_names_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.toml").write_text(MATRIX)
    monkeypatch.setenv("DIST_CHECKS_FAULTY_NODE", "n3")
    planted = ("--fault", "host_multiplies_wrongly")
    ended = dist_checks("run", tmp_path / "m.toml", *planted, "--out", tmp_path / "all")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    found = report(tmp_path / "all")
    assert found["blamed"] == "host", found["sentence"]
    assert "host n3" in found["sentence"]
    placed = hosts(tmp_path / "all")
    assert not [rung["id"] for rung in found["rungs"] if rung["status"] == "pass" and "n3" in placed[rung["id"]]]

    others = ("--nodelist", "n[1-2,4]", "--slurm", "nodes=3")
    ended = dist_checks("run", tmp_path / "m.toml", *planted, *others, "--out", tmp_path / "others")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "n3" not in {name for names in hosts(tmp_path / "others").values() for name in names}


def test_every_node_is_asked_and_the_odd_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("doctor", "--launcher", "slurm", "--slurm", "nodes=3", "--slurm", "mem=1000", "--every-node")
    ended = dist_checks(*words)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lines = [line.split()[0] + " " + " ".join(line.split()[1:4]) for line in ended.stdout.strip().splitlines()]
    assert lines == ["ok node n1 9", "ok node n2 9", "ok node n3 9", "ok n1 with n2", "ok n2 with n3"]
    assert "9 products, the bits of 2 other nodes" in ended.stdout

    monkeypatch.setenv("DIST_CHECKS_FAULTY_NODE", "n2")
    ended = dist_checks(*words, "--fault", "host_multiplies_wrongly")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert [line.split()[3] for line in ended.stdout.splitlines() if line.startswith("NOT OK")] == ["n2"]
