"""What is asked of a launcher: a job for each rung."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dist_checks import stored
from dist_checks.axes import Axis, Setting
from dist_checks.matrix import ConfigError, Matrix
from dist_checks.rung import Rung
from launch.base import Job

ENTRY = "dist_checks.worker.entry:main"
DESCRIBE = "dist_checks.worker.entry:describe"
FLIGHT_RECORDS = "2000"
"""Collectives that torch's flight recorder keeps on each rank: what was really sent."""


def jobs(matrix: Matrix, rungs: Iterable[Rung], folder: Path, fault: str | None = None) -> Iterator[Job]:
    """What is asked of a launcher: a job for each rung, in the order given."""
    ladders = matrix.ladders
    for rung in rungs:
        own = folder / "rungs" / rung.id
        env = matrix.custom_of(rung.setting).env
        yield Job(
            name=rung.id,
            folder=own,
            world_size=rung.layout.world_size,
            entry=ENTRY,
            payload={
                **payload(ladders[rung.recipe], rung.setting, own, fault),
                "rung": rung.to_json(),
                "env": list(env),
            },
            env={"TORCH_FR_BUFFER_SIZE": FLIGHT_RECORDS, **env},
            deadline=matrix.launch.deadline,
            # A compiler at work ends no step for minutes.
            stall=matrix.launch.deadline if Axis.COMPILE in rung.setting else matrix.launch.stall,
            pulse=".jsonl",
            cold=rung.cold,
            avoid=_hosts_of(folder / "rungs" / rung.twin_of) if rung.twin_of and not rung.planned else (),
        )


def _hosts_of(rung: Path) -> tuple[str, ...]:
    """Where a rung ran that is run again: the rerun goes to other nodes, if there are any."""
    try:
        return tuple(sorted(set(stored.read_json(rung / "exit.json")["hosts"])))
    except (ConfigError, LookupError):
        return ()


def payload(matrix: Matrix, setting: Setting, folder: Path, fault: str | None) -> dict[str, Any]:
    """What a rank is told about recipe and training."""
    train = asdict(matrix.train_of(setting))
    planted = {"fault": fault} if fault else {}
    return planted | {
        "folder": str(folder.absolute()),
        "recipe": matrix.recipe,
        "options": matrix.options | matrix.custom_of(setting).options,
        "record_every": matrix.record_every,
        "train": train | {"clip": train["clip"] or None},
    }
