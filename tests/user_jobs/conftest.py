"""Ladders of scripts as users write them; mistakes and changes are texts of the script that are replaced by others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from jobs_of_users import HERE, Job

from dist_checks import session
from dist_checks.launching import PRELOAD, PRELOAD_DEEPSPEED, PRELOAD_TRANSFORMERS
from dist_checks.session import Outcome
from launch.local import LocalLauncher


@pytest.fixture(scope="session")
def launcher() -> Iterator[LocalLauncher]:
    with LocalLauncher(preload=(*PRELOAD, PRELOAD_DEEPSPEED, PRELOAD_TRANSFORMERS)) as launcher:
        yield launcher


@pytest.fixture
def job(launcher: LocalLauncher, tmp_path: Path) -> Job:
    """Runs a script of this folder, with some of its texts replaced, and judges it."""

    def run(
        script: str,
        words: str,
        axes: Mapping[str, Any],
        *,
        mistake: tuple[str, str] | None = None,
        changes: Sequence[tuple[str, str]] = (),
        command: Mapping[str, Any] | None = None,
        before: str = "",
        select: str = "",
        **matrix: Any,
    ) -> Outcome:
        text = (HERE / script).read_text()
        for old, new in [*changes, *([mistake] if mistake else [])]:
            assert old in text
            text = text.replace(old, new)
        runs = len(list(tmp_path.glob("run*")))
        folder = tmp_path / f"script{runs}"
        folder.mkdir()
        (folder / script).write_text(text)
        argv = f"{before} {folder / script} {words} --seed {{seed}} --steps {{steps}}"
        given = {
            "steps": 3,
            "launch": {"cold_twin": False, "deadline": 120.0},
            "blame": {"budget": 0},
            **matrix,
            "command": {"argv": argv, "warm": True, **(command or {})},
            "axes": axes,
        }
        return session.run(given, out=tmp_path / f"run{runs}", select=select, launcher=launcher)

    return run
