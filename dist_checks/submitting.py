"""From outside of a Slurm cluster: the run is handed over as a batch job, followed, and what it left is completed."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dist_checks import stored
from dist_checks.launching import nodes_needed
from dist_checks.matrix import ConfigError, Matrix
from dist_checks.progress import Progress
from dist_checks.rung import Rung
from dist_checks.trace import parse
from launch.base import Exit, State
from launch.sbatch import Follower, JobState, cancel, submit, tail
from launch.scontrol import SlurmError, minutes

POLL = 1.0  # seconds between two questions: scontrol is cheap, sbatch --wait asks every ten only
FLUSHED = 10.0  # seconds that a shared folder may need to show the last of what nodes have written
WARNED = 60  # seconds before its time limit that the harness in the job is told to come to an end
SUBMISSION = "slurm.json"
SCRIPT = """\
#!/bin/bash
{prologue}
exec {command}
"""


def hand_over(matrix: Matrix, folder: Path, largest: int, words: Sequence[str]) -> str:
    """Submits a job that runs ``folder``/matrix.toml in there; returns its id. Raises ConfigError where Slurm refuses.

    ``largest`` is the number of ranks of the largest rung; ``words`` are options of ``dist-checks run``.
    """
    slurm = matrix.launch.slurm
    nodes, each = nodes_needed(matrix, largest)
    output = folder.absolute() / "slurm-%j.out"
    options = [
        f"--job-name=dist-checks-{matrix.name}",
        f"--output={output}",
        f"--chdir={Path.cwd()}",
        *([f"--signal=B:INT@{WARNED}"] if minutes(slurm.time) > 3 * WARNED / 60 else []),
        *slurm.options(nodes, each, matrix.launch.nodelist),
    ]
    matrix_file, python = folder.absolute() / "matrix.toml", slurm.python or sys.executable
    command = [python, "-P", "-m", "dist_checks", "run", str(matrix_file), "--out", str(folder.absolute()), *words]
    _write(folder, "", options)  # the job may start before sbatch has told its id
    try:
        id = submit(_script(matrix, command), options)
    except SlurmError as error:
        raise ConfigError(f"launch.slurm: Slurm refuses the job: {error}") from None
    _write(folder, id, options)
    return id


def run_there(matrix: Matrix, words: Sequence[str]) -> int:
    """Runs a command of ``dist-checks`` as a job, prints what it says, and returns its exit code; 3 without one.

    Raises ConfigError where Slurm refuses. The output comes through a file that both sides have to see.
    """
    output = Path.cwd() / f".dist-checks-{os.getpid()}-{int(time.time())}.out"
    slurm = matrix.launch.slurm
    options = [
        f"--job-name=dist-checks-{words[0]}",
        f"--output={output}",
        f"--chdir={Path.cwd()}",
        *slurm.options(len(matrix.launch.nodelist) or 1, 1, matrix.launch.nodelist),
    ]
    command = [slurm.python or sys.executable, "-P", "-m", "dist_checks", *words]
    try:
        follower = Follower(id := submit(_script(matrix, command), options))
    except SlurmError as error:
        raise ConfigError(f"launch.slurm: Slurm refuses the job: {error}") from None
    until = time.monotonic() + slurm.wait
    try:
        while not (state := follower.look()).over:
            if state.state == "PENDING" and time.monotonic() > until:
                cancel(id)
            time.sleep(POLL / 4)
        end = time.monotonic() + FLUSHED
        while not output.exists() and time.monotonic() < end:
            time.sleep(POLL / 4)
        print(tail(output, 100_000), flush=True)
    except KeyboardInterrupt:
        cancel(id)
        raise
    finally:
        output.unlink(missing_ok=True)
    if state.state not in ("COMPLETED", "FAILED") or state.signal:
        print(state.words, file=sys.stderr)
        return 3
    return state.code or 0


def _script(matrix: Matrix, command: Sequence[str]) -> str:
    return SCRIPT.format(prologue="\n".join(matrix.launch.slurm.prologue), command=shlex.join(command))


def _write(folder: Path, id: str, options: Sequence[str]) -> None:
    (folder / SUBMISSION).write_text(json.dumps({"job": id, "options": list(options)}, indent=1) + "\n")


def awaited(folder: Path) -> bool:
    """Whether ``folder`` is that of a job that has not begun its work."""
    return (folder / SUBMISSION).exists() and not (folder / "rungs").exists()


def submitted(folder: Path) -> str:
    """The id of the job that was to run in ``folder``; '' where none was submitted."""
    try:
        return str(parse((folder / SUBMISSION).read_text())["job"])
    except (OSError, ValueError, LookupError):
        return ""


def follow(folder: Path, matrix: Matrix, progress: Progress) -> None:
    """Until the job is over; tells what it does. Ctrl-C cancels the job, and waits for it to be over."""
    id = submitted(folder)
    follower, watch = Follower(id), _Watch(folder, progress)
    until = time.monotonic() + matrix.launch.slurm.wait
    told, state = "", follower.look()
    try:
        while not state.over:
            if state.words != told and not watch.seen:
                told = state.words
                progress.note(told)
            if state.state == "PENDING" and time.monotonic() > until:
                progress.note(f"{told}: cancelled, since it has waited for {matrix.launch.slurm.wait:g} s")
                cancel(id)
                until = time.monotonic() + FLUSHED
            time.sleep(POLL)
            watch.look()
            state = follower.look()
    except KeyboardInterrupt:
        progress.note(f"interrupted: Slurm job {id} is being cancelled")
        cancel(id)
        end = time.monotonic() + 6 * FLUSHED
        while not follower.look().over and time.monotonic() < end:
            time.sleep(POLL / 4)
        raise
    finally:
        watch.look()
    if state.state == "COMPLETED" or state.code in (1, 3):  # the harness came to its end
        end = time.monotonic() + FLUSHED
        while not (folder / "report.json").exists() and time.monotonic() < end:
            time.sleep(POLL / 4)
        watch.look()


def settle(folder: Path) -> JobState | None:
    """Writes why rungs have not ended, if the job of this folder is over; None where Slurm is not to be asked.

    Raises ConfigError where the harness in the job found the configuration wrong.
    """
    id = submitted(folder)
    if not id:
        return None
    state = Follower(id).look()
    if state.over and state.code == 2 and not state.signal and not (folder / "report.json").exists():
        raise ConfigError(tail(folder / f"slurm-{id}.out") or state.words)
    for rung in _planned(folder) if state.over and state.state != "UNKNOWN" else ():
        own = next((own for own in _folders(folder, rung) if not (own / "exit.json").exists()), None)
        if own is None or any(_state(each) not in ("", "done") for each in _folders(folder, rung)):
            continue
        own.mkdir(parents=True, exist_ok=True)
        begun = (own / "job.json").exists()
        Exit(
            job=rung["id"],
            state=State.CANCELLED if state.state == "CANCELLED" else State.LOST,
            ranks=(),
            first_failed=None,
            error=f"{state.words} {'before this rung had ended' if begun else 'before this rung was started'}",
            hosts=(),
            seconds=0.0,
        ).write(own)
    return state


def _planned(folder: Path) -> list[dict[str, Any]]:
    try:
        rungs: list[dict[str, Any]] = parse((folder / "plan.json").read_text())["rungs"]
        return rungs
    except (OSError, ValueError, LookupError):
        return []


def _folders(run: Path, rung: Mapping[str, Any]) -> list[Path]:
    """Of the phases of a rung, in order."""
    return [stored.phase_folder(run, phase) for phase in Rung.from_json(rung).phases]


def _state(own: Path) -> str:
    """How a phase ended; empty where it has not."""
    try:
        return str(parse((own / "exit.json").read_text())["state"])
    except (OSError, ValueError, LookupError):
        return ""


class _Watch:
    """Tells of rungs as their files appear."""

    def __init__(self, folder: Path, progress: Progress) -> None:
        self._folder, self._progress = folder, progress
        self.seen: set[str] = set()
        self._ended: set[str] = set()

    def look(self) -> None:
        for rung in _planned(self._folder):
            id, phases = rung["id"], _folders(self._folder, rung)
            if id in self._ended or not (phases[0] / "job.json").exists():
                continue
            if id not in self.seen:
                self.seen.add(id)
                self._progress.started(id, rung["world_size"])
            last = next((own for own in phases if _state(own) != "done"), phases[-1])
            if not (state := _state(last)):
                continue
            exits = (parse((own / "exit.json").read_text()) for own in phases[: phases.index(last) + 1])
            self._progress.ended(id, state, sum(exit["seconds"] for exit in exits))
            self._ended.add(id)
