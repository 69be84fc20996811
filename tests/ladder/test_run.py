"""A whole run, from a matrix to its folder: what it leaves, what it says, and how it ends when it is disturbed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from ladders import Ladder, findings

from dist_checks import ConfigError, judge
from dist_checks.judging.reading import read
from dist_checks.judging.seen import Seen
from dist_checks.judging.verdict import ExitCode
from dist_checks.rung import Rung
from dist_checks.session import Outcome
from dist_checks.trace import Kind

COLD = {"cold_twin": True, "deadline": 120.0}


@pytest.fixture(scope="module")
def healthy(launcher: Any, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Every axis at once, so that the tests below share one run."""
    from dist_checks import run

    axes = {"dp_replicate": 3, "dp_shard": [3, 2], "tp": 2, "sp": True, "accum": 5, "precision": ["bf16", "fp16"]}
    matrix = {"steps": 5, "options": {"layers": 2, "samples": 123}, "axes": axes, "launch": COLD}
    return run(matrix, out=tmp_path_factory.mktemp("healthy"), launcher=launcher)


def rungs(outcome: Outcome) -> dict[str, dict[str, Any]]:
    return {rung["id"]: rung for rung in outcome.report["rungs"]}


def test_it_passes(healthy: Outcome) -> None:
    assert healthy.report["sentence"] == f"PASS {len(rungs(healthy)) - 5} rungs equal to one device"
    assert healthy.exit_code() is ExitCode.PASS
    assert not [f for f in healthy.report["findings"] if f["status"] not in ("pass", "skip")]


def test_structural_rungs_agree_with_one_device_in_every_gradient(healthy: Outcome) -> None:
    """To better than 1e-11, relative to the norm of the gradient, at every step: the limit is a hundred times wider."""
    compared = 0
    for rung in rungs(healthy).values():
        if rung["precision"] == "fp64" and rung["role"] == "rung":
            assert len(rung["series"]["steps"]) == 5
            assert max(rung["series"]["gradient_distance"]) < 1e-11, rung["id"]
            compared += 1
    assert compared >= 10


@pytest.mark.parametrize("seed", [0, 12])
def test_fp32_and_the_small_steps_of_sgd_raise_nothing(ladder: Ladder, seed: int) -> None:
    """Where a loss and a weight are within a few units in the last place, their own rounding is what is seen."""
    outcome = ladder(
        {"dp_replicate": 3, "precision": ["fp32", "fp16"]},
        seeds=[seed],
        options={"layers": 2},
        train={"optimizer": "sgd", "learning_rate": 3e-3},
    )
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]


def test_a_long_run_records_tensors_now_and_then(ladder: Ladder) -> None:
    """SGD's formula with momentum, norms and losses go on where they can."""
    axes = {"dp_replicate": 2, "precision": "bf16"}
    outcome = ladder(axes, steps=14, record_every=6, train={"optimizer": "sgd"}, combine={"mode": "singles"})
    assert outcome.report["sentence"] == "PASS 1 rung equal to one device"
    plan = json.loads((outcome.folder / "plan.json").read_text())
    rung = next(Rung.from_json(each) for each in plan["rungs"] if each["id"] == "dp_replicate2")
    seen = Seen(rung, read(outcome.folder / "rungs" / rung.id, rung.layout.world_size))
    assert set(seen.full(Kind.GRADIENT).steps) == {0, 1, 2, 3, 4, 6, 12}
    assert len(seen.trace.steps) == 14


def test_the_cold_start_gives_the_bits_of_the_warm_one(healthy: Outcome) -> None:
    [cold] = [id for id in rungs(healthy) if id.endswith("@cold")]
    [twins] = [f for f in healthy.report["findings"] if (f["rung"], f["check"]) == (cold, "twins")]
    assert twins["status"] == "pass"
    assert int(twins["message"].split()[0]) > 1000, "digests compared"


def test_no_rank_opened_a_collective_for_the_probe(healthy: Outcome) -> None:
    """What the flight recorder saw of three DDP ranks: DDP's own reductions and the worker's count of targets."""
    events = (healthy.folder / "rungs" / "dp_replicate3" / "rank-00000.jsonl").read_text().splitlines()
    [evidence] = [event for event in map(json.loads, events) if event["event"] == "evidence"]
    counted = {op: n for group in evidence["collectives"].values() for op, n in group.items()}
    assert set(counted) <= {"all_reduce", "broadcast", "allgather", "all_gather"}


def test_judged_again_the_report_is_the_same(healthy: Outcome) -> None:
    before = (healthy.folder / "report.json").read_bytes()
    assert judge(healthy.folder) == json.loads(before)
    assert (healthy.folder / "report.json").read_bytes() == before


def test_judged_without_torch_the_report_is_the_same(healthy: Outcome) -> None:
    before = (healthy.folder / "report.json").read_bytes()
    code = (
        "import sys; sys.modules['torch'] = None\n"  # any import of torch now raises ImportError
        "from dist_checks.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "judge", str(healthy.folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == healthy.report["sentence"]
    assert (healthy.folder / "report.json").read_bytes() == before


def test_the_folder_has_what_is_promised(healthy: Outcome) -> None:
    for name in ("matrix.toml", "plan.json", "env.json", "report.json", "report.html", "junit.xml"):
        assert (healthy.folder / name).stat().st_size
    rung = healthy.folder / "rungs" / "tp2"
    for name in (
        "job.json",
        "exit.json",
        *(f"rank-0000{r}.{kind}" for r in (0, 1) for kind in ("jsonl", "digests", "log")),
    ):
        assert (rung / name).exists(), name


def test_a_stored_run_does_not_say_that_a_fault_was_planted(ladder: Ladder) -> None:
    outcome = ladder({"tp": 2}, fault="O24")
    assert outcome.exit_code() is ExitCode.FAIL
    for path in outcome.folder.rglob("*"):
        if path.is_file() and path.suffix in (".json", ".jsonl", ".log", ".toml"):
            assert "O24" not in path.read_text(encoding="utf-8").replace("--fault O24", ""), path


def test_a_rank_that_dies_is_a_verdict(ladder: Ladder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe whose model kills rank 1: the crash is that rung's, not the harness's."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    outcome = ladder({"dp_replicate": 2}, recipe="dying_recipe:DiesOnRank1")
    assert outcome.exit_code() is ExitCode.FAIL
    assert outcome.report["sentence"] == "FAIL broken: dp_replicate (alone)"
    [crash] = findings(outcome.report, "completes", "dp_replicate2")
    assert crash["ranks"] == [1]
    assert "SIGKILL" in crash["message"] or "signal 9" in crash["message"]


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ({"recipe": "nowhere.at_all:Recipe"}, "recipe"),
        ({"recipe": "gtp"}, "recipe"),
        ({"options": {"layres": 3}}, "layres"),
        ({"options": {"heads": 5}}, "options.heads"),
        ({"axes": {"tp": 3}}, "axes.tp[0]: tp degree (3) must divide the recipe's heads (4)"),
        ({"axes": {"dp_shard": 9}}, "axes.dp_shard[0]: a world of 9 ranks is larger than the 8 devices"),
        ({"train": {"batch": 0}}, "matrix: train.batch: input should be greater than or equal to 1, not 0"),
    ],
)
def test_what_the_user_can_put_right_is_one_message(
    ladder: Ladder, tmp_path: Path, matrix: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        ladder(matrix.pop("axes", {"tp": 2}), **matrix)
    assert message in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
    assert not list(tmp_path.iterdir()), "nothing was started, so nothing is left"


def test_a_full_folder_is_not_overwritten(ladder: Ladder, tmp_path: Path, launcher: Any) -> None:
    from dist_checks import run

    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(ConfigError, match="is not empty, and nothing in it is overwritten"):
        run({"axes": {"tp": 2}}, out=tmp_path, launcher=launcher)
    assert (tmp_path / "mine.txt").read_text() == "precious"


def test_an_unknown_fault(ladder: Ladder) -> None:
    with pytest.raises(ConfigError, match="--fault: there is no fault 'O99', expected one of O01, O02"):
        ladder({"tp": 2}, fault="O99")


def test_ctrl_c_leaves_no_process_and_a_report_of_what_had_finished(tmp_path: Path) -> None:
    (tmp_path / "m.toml").write_text(
        "steps = 3\n[axes]\ndp_replicate = [2, 3, 4]\ntp = 2\n[launch]\ncold_twin = false\n"
    )
    out = tmp_path / "run"
    command = [sys.executable, "-m", "dist_checks", "run", str(tmp_path / "m.toml"), "--out", str(out)]
    harness = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wait_for((out / "rungs" / "single" / "exit.json").exists, harness)
        started = psutil.Process(harness.pid).children(recursive=True)
        assert started
        os.kill(harness.pid, signal.SIGINT)
        stdout, stderr = harness.communicate(timeout=60)
    finally:
        harness.kill()
    assert harness.returncode == ExitCode.INTERRUPTED, stderr
    report = json.loads((out / "report.json").read_text())
    statuses = {rung["id"]: rung["status"] for rung in report["rungs"]}
    assert statuses["single"] == "pass"
    assert "inconclusive" in statuses.values()
    assert "fail" not in statuses.values(), "what was cut short is not broken"
    assert stdout.splitlines()[-1] == report["sentence"]
    assert report["sentence"].startswith("INCONCLUSIVE")
    assert not [process for process in started if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def wait_for(condition: Any, harness: subprocess.Popen[str], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert harness.poll() is None, harness.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
