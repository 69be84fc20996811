"""show-batch, replay and compare-models, from the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ladders import Ladder

HERE = Path(__file__).parent
SMALL = {"layers": 2, "samples": 123}


def dist_checks(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "dist_checks", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_compare_models(tmp_path: Path) -> None:
    models = ("reference_models:gpt", "reference_models:gpt")
    ended = dist_checks("compare-models", *models, "--fault", "norm_epsilon_times_thousand", cwd=tmp_path)
    assert ended.returncode == 1, ended.stderr
    assert ended.stdout.startswith("FAIL outputs are equal up to blocks.0.norm1")
    assert "\n     suspect  another epsilon in a norm\n" in ended.stdout
    assert "\n     next  " in ended.stdout


def test_show_batch(tmp_path: Path) -> None:
    ended = dist_checks("show-batch", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("inputs (4 x 32) over targets")
    first, second = lines[2].split(), lines[3].split()
    assert (first[0], second[0]) == ("inputs", "targets")
    assert first[2:] == second[1:-1], "each target is the next input"
    assert len(lines) < 40, "one page"


def test_replay_names_the_operation_and_clears_without_the_sample(ladder: Ladder, tmp_path: Path) -> None:
    outcome = ladder({}, fault="nan_from_one_letter", single={"learn": 0, "overfit": 0}, options=SMALL)
    folder = outcome.folder / "rungs" / "single"
    ended = dist_checks("replay", str(folder), "--fault", "nan_from_one_letter", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "reproduces, bit for bit" in ended.stdout
    assert "comes out of log in the model" in ended.stdout
    assert "the first NaN out of mul in the model" in ended.stdout
    healthy = dist_checks("replay", str(folder), cwd=tmp_path)
    assert healthy.returncode == 1, "the same step, computed otherwise, does not reproduce"
    assert "does not reproduce" in healthy.stdout


def test_replay_tells_an_overflow_from_what_is_wrong_in_fp32_too(ladder: Ladder, tmp_path: Path) -> None:
    outcome = ladder({"precision": "fp16"}, fault="overflow_in_one_layer", options=SMALL)
    ended = dist_checks("replay", str(outcome.folder / "rungs/fp16"), "--fault", "overflow_in_one_layer", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "in fp32: every number is finite" in ended.stdout
    assert "more than the 65504 that fp16 has" in ended.stdout


def test_explain(tmp_path: Path) -> None:
    ended = dist_checks("explain", "loss_stuck", cwd=tmp_path)
    assert ended.stdout.startswith("loss_stuck: the loss stays at ln(classes)\n  1. an optimizer that does not hold")
    assert dist_checks("explain", cwd=tmp_path).stdout.count("\n") > 30
    assert dist_checks("explain", "no", "such", "thing", cwd=tmp_path).returncode == 2
