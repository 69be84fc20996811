"""One question for one process that has torch, which this one never imports: its answer, read from a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dist_checks import stored
from dist_checks.launching import open_launcher
from dist_checks.matrix import ConfigError, Matrix
from launch import scratch
from launch.base import Job, LaunchError, State


def ask(entry: str, payload: Mapping[str, Any], deadline: float = 300.0) -> dict[str, Any]:
    """What ``entry`` writes to ``answer.json`` in the folder that it is given. Raises ConfigError with its last word
    where it fails."""
    with scratch.held("dist-checks-") as folder, open_launcher(Matrix()) as launcher:
        job = Job(
            name="ask",
            folder=folder,
            world_size=1,
            entry=entry,
            payload={"folder": str(folder), **payload},
            deadline=deadline,
        )
        try:
            (exit,) = launcher.run([job])
        except LaunchError as error:
            raise ConfigError(str(error).strip().splitlines()[-1]) from None
        if exit.state is not State.DONE:
            lines = exit.error.strip().splitlines() or [str(exit.state)]
            raise ConfigError(lines[-1].removeprefix("ValueError: "))
        return stored.read_json(folder / "answer.json")
