"""What is asked of a launcher: a job for each rung, or one after the other where the rung resumes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dist_checks import stored
from dist_checks.axes import Axis, Setting
from dist_checks.command import Command, out_of
from dist_checks.matrix import ConfigError, Matrix
from dist_checks.rung import Phase, Rung
from launch.base import Job

ENTRY = "dist_checks.worker.entry:main"
SCRIPT = "dist_checks.worker.script:main"
DESCRIBE = "dist_checks.worker.entry:describe"
FLIGHT_RECORDS = "2000"
"""Collectives that torch's flight recorder keeps on each rank: what was really sent."""


CHECKPOINT = "checkpoint{}"
"""What a phase of a rung leaves for the next one, in the folder of the rung."""


def jobs(matrix: Matrix, rungs: Iterable[Rung], folder: Path, fault: str | None = None) -> Iterator[tuple[Job, ...]]:
    """For each rung, in the order given, the jobs of its phases: each is to start when the one before is done."""
    ladders = matrix.ladders
    for rung in rungs:
        if matrix.command:
            yield (_of_command(matrix, matrix.command, rung, folder),)
            continue
        phases = rung.phases
        yield tuple(_job(matrix, ladders[rung.recipe], phase, len(phases), folder, fault) for phase in phases)


def _job(matrix: Matrix, ladder: Matrix, phase: Phase, phases: int, run: Path, fault: str | None) -> Job:
    rung, folder = phase.rung, stored.phase_folder(run, phase)
    env = matrix.custom_of(rung.setting).env
    return Job(
        name=f"{rung.id}.{phase.name}" if phase.name else rung.id,
        folder=folder,
        world_size=rung.layout.world_size,
        entry=ENTRY,
        payload={
            **payload(ladder, rung.setting, folder, fault),
            "rung": rung.to_json(),
            "phase": _steps_of(phase, phases, (run / "rungs" / rung.id).absolute()),
            "env": list(env),
        },
        env={"TORCH_FR_BUFFER_SIZE": FLIGHT_RECORDS, **env},
        deadline=matrix.launch.deadline,
        # A compiler at work ends no step for minutes.
        stall=matrix.launch.deadline if Axis.COMPILE in rung.setting else matrix.launch.stall,
        pulse=".jsonl",
        cold=rung.cold,
        avoid=_hosts_of(run, rung) if rung.twin_of and not rung.planned else (),
    )


def _steps_of(phase: Phase, phases: int, folder: Path) -> dict[str, Any]:
    """Where a phase ends, and the checkpoints that it begins and ends with."""
    return {
        "stop": phase.stop,
        "load": str(folder / CHECKPOINT.format(phase.index - 1)) if phase.index else None,
        "save": str(folder / CHECKPOINT.format(phase.index)) if phase.index + 1 < phases else None,
    }


def forget_checkpoint(job: Job) -> None:
    """Of a job that is done: what it has loaded. Where it failed, that is kept."""
    if loaded := job.payload.get("phase", {}).get("load"):
        shutil.rmtree(loaded, ignore_errors=True)


def _of_command(matrix: Matrix, command: Command, rung: Rung, run: Path) -> Job:
    """The user's own script on every rank; what it is to record, and that it is to record, it finds in its
    environment."""
    folder = run / "rungs" / rung.id
    custom = matrix.custom_of(rung.setting)
    options = matrix.options | custom.options
    about = {"rung": rung.to_json(), "env": list(custom.env), "options": options}
    about["tokens"] = {"pad": command.pad, "begin": command.begin, "end": command.end}
    if command.see == "log":
        about |= {"loss": command.loss} | {
            key: command.fill(getattr(command, key), rung, options, folder) for key in ("log", "checkpoint")
        }
    warm = command.forks(rung)
    argv = command.filled(rung, options, folder)
    threads = {} if warm or "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}  # as torchrun does
    out_of(folder).mkdir(parents=True, exist_ok=True)
    return Job(
        name=rung.id,
        folder=folder,
        world_size=1 if command.launches else rung.layout.world_size,
        argv=() if warm else argv,
        entry=SCRIPT if warm else "",
        payload={"argv": command.script(argv), "see": command.see, "folder": str(folder.absolute())} if warm else {},
        env={
            "TORCH_FR_BUFFER_SIZE": FLIGHT_RECORDS,
            "DIST_CHECKS_TRACE": str(folder.absolute()),
            "DIST_CHECKS_RUNG": json.dumps(about),
            **threads,
            **custom.env,
        },
        deadline=matrix.launch.deadline,
        stall=matrix.launch.deadline if Axis.COMPILE in rung.setting else matrix.launch.stall,
        pulse="" if command.see == "log" else ".jsonl",
        cold=rung.cold,
        avoid=_hosts_of(run, rung) if rung.twin_of and not rung.planned else (),
    )


def _hosts_of(run: Path, rung: Rung) -> tuple[str, ...]:
    """Where a rung ran that is run again: the rerun goes to other nodes, if there are any."""
    hosts: set[str] = set()
    for phase in replace(rung, id=str(rung.twin_of)).phases:
        with suppress(ConfigError, LookupError):
            hosts.update(stored.read_json(stored.phase_folder(run, phase) / "exit.json")["hosts"])
    return tuple(sorted(hosts))


def payload(matrix: Matrix, setting: Setting, folder: Path, fault: str | None) -> dict[str, Any]:
    """What a rank is told about recipe and training."""
    if matrix.command:
        return {"folder": str(folder.absolute()), "command": asdict(matrix.command) | {"name": matrix.command.name}}
    train = asdict(matrix.train_of(setting))
    planted = {"fault": fault} if fault else {}
    return planted | {
        "folder": str(folder.absolute()),
        "recipe": matrix.recipe,
        "options": matrix.options | matrix.custom_of(setting).options,
        "record_every": matrix.record_every,
        "train": train | {"clip": train["clip"] or None},
        "single": {"overfit": matrix.overfit_samples},
    }
