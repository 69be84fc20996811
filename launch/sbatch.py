"""A batch job of Slurm: submitted, followed by what scontrol says, cancelled."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.client import python_path
from launch.scontrol import SlurmError, ask, expand, fields

FORGETFUL = 60.0  # seconds without an answer about a job until it is taken for unknown: controllers restart
OVER = {
    "COMPLETED": "has ended",
    "FAILED": "has failed",
    "TIMEOUT": "was ended at its time limit",
    "DEADLINE": "was ended at its deadline",
    "CANCELLED": "was cancelled",
    "PREEMPTED": "was preempted",
    "NODE_FAIL": "was ended because a node failed",
    "BOOT_FAIL": "was ended because a node did not boot",
    "OUT_OF_MEMORY": "was ended because it was out of memory",
    "REVOKED": "was revoked",
    "UNKNOWN": "is not known to Slurm any more",
}
"""States that a job does not leave, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What Slurm says about a job at one moment."""

    id: str
    state: str  # as Slurm writes it: PENDING, RUNNING, or one of OVER
    reason: str = ""  # why it waits, or was ended
    code: int | None = None  # the exit code of the batch script, once it is over
    signal: int = 0  # that ended it
    nodes: str = ""
    limit: str = ""
    lost: str = ""  # the node of the batch script, where the job has gone on without it

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def words(self) -> str:
        """``Slurm job 12 was ended at its time limit (00:10:00)``."""
        what = OVER.get(self.state, f"is {self.state}")
        if self.state == "TIMEOUT" and self.limit:
            what += f" ({self.limit})"
        elif self.state == "FAILED" and self.lost:
            what += f": its first node {self.lost} was lost"
        elif self.state == "FAILED":
            what += f" with {f'signal {self.signal}' if self.signal else f'exit code {self.code}'}"
        elif self.reason and not self.over:
            what += f" ({self.reason})"
        return f"Slurm job {self.id} {what}"


def submit(script: str, options: Sequence[str]) -> str:
    """The id of the job. Raises SlurmError with what Slurm says where it refuses.

    The script is handed over, not stored: what it runs may be nobody's business but the job's.
    """
    # Options of a job that this process is in, or of a user's environment for sbatch, would be taken for ours.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    env |= {"PYTHONPATH": python_path()} | {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
    said = ask("sbatch", "--parsable", *options, given=script, env=env)
    return said.strip().splitlines()[-1].split(";")[0]


def cancel(id: str) -> None:
    """Raises SlurmError; a job that is over is none."""
    ask("scancel", id)


class Follower:
    """Asks about one job, and takes it for over when nobody knows it for a minute."""

    def __init__(self, id: str) -> None:
        self._id, self._last = id, JobState(id=id, state="PENDING")
        self._known = time.monotonic()

    def look(self) -> JobState:
        try:
            self._last, self._known = _shown(ask("scontrol", "-o", "show", "job", self._id)), time.monotonic()
        except SlurmError as error:
            forgotten = "Invalid job id" in str(error)
            if forgotten or time.monotonic() > self._known + FORGETFUL:
                self._last = _accounted(self._id) or JobState(id=self._id, state="UNKNOWN", reason=str(error))
        return self._last


def _shown(text: str) -> JobState:
    found = fields(text.strip().splitlines()[0])
    code, _, signal = found.get("ExitCode", "0:0").partition(":")
    state = found["JobState"]
    reason = found.get("Reason", "")
    first = found.get("BatchHost", "")
    nodes = "" if found.get("NodeList") in (None, "(null)") else found["NodeList"]
    return JobState(
        id=found["JobId"],
        state=state,
        reason="" if reason == "None" else reason,
        code=int(code) if state in OVER else None,
        signal=int(signal or 0),
        nodes=nodes,
        limit=found.get("TimeLimit", ""),
        lost=first if state in OVER and nodes and first not in ("", *expand(nodes)) else "",
    )


def _accounted(id: str) -> JobState | None:
    """From the accounting, where there is one."""
    try:
        said = ask("sacct", "-X", "-n", "-P", "-j", id, "-o", "State,ExitCode,NodeList,Timelimit")
        state, code, nodes, limit = said.strip().splitlines()[0].split("|")
    except (SlurmError, IndexError, ValueError):
        return None
    exit_code, _, signal = code.partition(":")
    name = re.split(r"[ +]", state)[0]  # 'CANCELLED by 1000'
    return JobState(id=id, state=name, code=int(exit_code or 0), signal=int(signal or 0), nodes=nodes, limit=limit)


def tail(path: Path, lines: int = 20) -> str:
    """The end of a job's output; '' where there is none."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return ""
