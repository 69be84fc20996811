"""The command line: every ending has its exit code, and what is wrong is said on stderr in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def dist_checks(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dist_checks", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_help_names_the_commands(tmp_path: Path) -> None:
    ended = dist_checks("--help", cwd=tmp_path)
    assert ended.returncode == 0
    for command in ("init", "doctor", "plan", "run", "selftest", "judge", "report"):
        assert f"\n  {command} " in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "gone.toml"), "gone.toml: cannot be read"),
        (("run", "bad.toml"), "bad.toml: stepz: this key is not known"),
        (("run", "bad.toml", "--preset", "quick"), "give either a file (bad.toml) or --preset (quick)"),
        (
            ("run", "--preset", "slow"),
            "--preset: there is no preset 'slow', expected one of huggingface, nightly, quick",
        ),
        (("run", "--nosuch"), "No such option: --nosuch"),
        (("run", "--launcher", "pbs"), "'pbs' is not"),
        (("judge", "."), "this is no run folder: it has no plan.json"),
        (("report", "."), "report.json: cannot be read"),
        (("judge",), "runs/latest: this is no run folder"),
    ],
)
def test_usage_errors(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "bad.toml").write_text("stepz = 3\n")
    ended = dist_checks(*arguments, cwd=tmp_path)
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not ended.stdout


def test_without_torch_a_run_is_refused_in_one_line(tmp_path: Path) -> None:
    """Ranks need torch; what is left of the harness says so."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    command = [sys.executable, "-m", "dist_checks", "run", "--out", "run"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert ended.stderr == (
        "launch.launcher: 'local' cannot start ranks: ModuleNotFoundError: No module named 'torch'\n"
    )
    assert not (tmp_path / "run").exists()


def test_init_writes_a_valid_matrix_and_overwrites_nothing(tmp_path: Path) -> None:
    from dist_checks.matrix import load

    assert dist_checks("init", cwd=tmp_path).returncode == 0
    assert load(tmp_path / "matrix.toml").recipe == "gpt"
    again = dist_checks("init", cwd=tmp_path)
    assert again.returncode == 2
    assert again.stderr == "matrix.toml: this file exists, and is not overwritten\n"
