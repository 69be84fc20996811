"""README's "Bring your own job": every example is run as it stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from dist_checks import session
from dist_checks.matrix import load, parse
from launch.local import LocalLauncher

README = Path(__file__).parents[2] / "README.md"
BLOCK = re.compile(r"<!-- (?P<name>\S+) -->\n```\w+\n(?P<text>.*?)```", re.DOTALL)


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files of the page."""
    for block in BLOCK.finditer(README.read_text(encoding="utf-8")):
        (tmp_path / block["name"]).write_text(block["text"], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(name: str, launcher: LocalLauncher, **changes: Any) -> dict[str, Any]:
    matrix = load(Path(name))
    quick = {"launch": {"cold_twin": False, "deadline": 120.0}, "blame": {"budget": 0}}
    command = {"command": {**_table(matrix.command), "warm": True, **changes}} if matrix.command else {}
    given = {"steps": matrix.steps, "recipe": matrix.recipe, "axes": {str(a): list(v) for a, v in matrix.axes.items()}}
    outcome = session.run(parse({**given, **quick, **command}), out=Path("run"), launcher=launcher)
    return outcome.report


def _table(command: object) -> dict[str, Any]:
    return {name: getattr(command, name) for name in command.__slots__}  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["train.toml", "unchanged.toml"])
@pytest.mark.usefixtures("example")
def test_a_script(name: str, launcher: LocalLauncher) -> None:
    argv = f"{Path('train.py').absolute()} --accum {{accum}} --seed {{seed}} --steps {{steps}}"
    report = run(name, launcher, argv=argv)
    assert report["status"] == "pass", report["sentence"]


def test_a_recipe(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{example}:{':'.join(sys.path)}")
    with LocalLauncher(preload=("dist_checks.worker.entry",)) as launcher:
        report = run("mlp.toml", launcher)
    assert report["status"] == "pass", report["sentence"]
    assert {"axes": {"tp": 2}, "reason": "tp needs a recipe with a tensor_parallel_plan; Recipe has none"} in (
        report["skipped"]
    )
