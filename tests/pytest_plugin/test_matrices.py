"""Matrices in pytest: an item for each rung and check, and the fixture that goes through the rungs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pytest_runs import INI, Ran, run

# Dropout: masks of two data ranks are none of one device. A learning rate of its own: a mistake that nothing names.
MATRIX = """
steps = 2
options = { layers = 1, width = 16, samples = 150, dropout = 0.1 }
combine = { mode = "singles" }
blame = { budget = 0 }
launch = { cold_twin = false, deadline = 240.0, stall = 240.0 }
[axes]
dp_replicate = [2]
custom = ["rate"]
[custom.rate]
train = { learning_rate = 0.01 }
"""
FIXTURE = """
import pytest

@pytest.mark.dist_checks_matrix("matrix.toml")
def test_rung(dist_checks_rung):
    rung = dist_checks_rung
    assert rung.layout.world_size == rung.world_size == (2 if rung.name == "dp_replicate2" else 1)
    assert rung.axes.get("dp_replicate", 1) == rung.world_size
    assert rung.checks["completes"] == "pass"
    assert len(list(rung.folder.glob("rank-*.jsonl"))) == rung.world_size
    assert {finding["rung"] for finding in rung.findings} == {rung.name}
    assert rung.status != "fail", rung.sentence

def test_without_a_matrix(dist_checks_rung):
    pass
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("user")
    (folder / "matrix.toml").write_text(MATRIX)
    (folder / "test_rungs.py").write_text(FIXTURE)
    return folder


@pytest.fixture(scope="module")
def ran(folder: Path) -> Ran:
    """By two workers of pytest-xdist, which share one run."""
    return run(folder, "matrix.toml", "test_rungs.py", "-n", "2", "-rs")


def test_an_item_is_a_check_of_a_rung(ran: Ran) -> None:
    assert ran.code == 1
    assert ran.outcomes["single::loss"] == "skipped"
    assert ran.outcomes["dp_replicate2::replicas"] == "passed"
    assert ran.outcomes["dp_replicate2::gradients"] == "failed"
    assert ran.outcomes["custom.rate::forward"] == "passed"
    assert ran.outcomes["custom.rate::updates"] == "failed"
    assert "is what others are compared with" in ran.text, "why it was skipped"


def test_a_failure_is_told_as_the_judge_tells_it(ran: Ran) -> None:
    told = ran.told("custom.rate updates")
    assert "FAIL updates  custom.rate" in told
    assert "axis  custom" in told
    assert "dist-checks run matrix.toml -k custom.rate" in told


def test_what_could_not_be_decided_is_a_failure_that_says_so(ran: Ran) -> None:
    told = ran.told("dp_replicate2 gradients")
    assert "INCONCLUSIVE: this could not be decided, which is no pass" in told
    assert "dropout, which masks other elements under dp_replicate" in told


def test_the_verdict_is_in_the_summary_once(ran: Ran) -> None:
    assert ran.text.count("matrix.toml: FAIL broken: custom.rate (alone)") == 1
    assert "  custom: schedule of custom.rate: rank 0 has learning rates 0.002" in ran.text
    assert "report.html" in ran.text


def test_the_fixture_goes_through_the_rungs(ran: Ran) -> None:
    assert ran.outcomes["test_rung[single]"] == ran.outcomes["test_rung[dp_replicate2]"] == "passed"
    assert "FAIL broken: custom.rate (alone)" in ran.told("test_rung[custom.rate]")
    assert "dist_checks_rung needs a matrix: @pytest.mark.dist_checks_matrix" in ran.text


def test_it_was_run_once(ran: Ran, folder: Path) -> None:
    assert [path.name for path in (folder / "base").glob("matrix-*/rungs")] == ["rungs"], ran.text


def test_k_restricts_what_is_run(folder: Path) -> None:
    ini = f"{INI}dist_checks_matrices = matrix*.toml\n"
    ran = run(folder, ".", "-k", "custom.rate and (samples or loss)", ini=ini)
    assert ran.outcomes == {"custom.rate::samples": "passed", "custom.rate::loss": "failed"}
    assert "FAIL broken: custom.rate (alone)" in ran.text
    assert {path.name for path in (folder / "base").glob("matrix-*/rungs/*")} == {"single", "custom.rate"}


def test_a_matrix_is_collected_when_it_is_named(folder: Path) -> None:
    ran = run(folder, ".", "--collect-only", "-q", "--deselect", "test_rungs.py", "--ignore", "test_rungs.py")
    assert "no tests collected" in ran.text


def test_a_mistake_in_it_is_one_line(folder: Path) -> None:
    (folder / "wrong.toml").write_text("steps = 0\n[axes]\nttp = [2]\n")
    ran = run(folder, "wrong.toml")
    assert "axes.ttp: this is no axis, expected one of" in ran.text
    assert "Traceback" not in ran.text
