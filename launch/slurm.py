"""Runs jobs on the nodes of a Slurm allocation that this process is in: srun only places the agents, one on each node.

They stay for all jobs, so a rank starts as fast as on one machine. Each agent is a step of its own: a node that fails
ends one step. Submit the allocation with --no-kill, or Slurm ends all of it when a node fails.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launch import logs, scratch
from launch.base import LaunchError
from launch.cluster import ClusterLauncher
from launch.process import PARENT, end_group, name_of
from launch.sbatch import JobState
from launch.scontrol import SlurmError, ask, expand, fields, minutes

JOB = "SLURM_JOB_ID"
PATIENCE = 2.0  # seconds that srun has to end by itself
NEAR = 150.0  # seconds before the time limit: Slurm warns within a minute of what it was asked for
SEEN = 0.5  # seconds after its agent's end until srun has ended, too


def inside() -> str:
    """The id of the allocation that this process is in, or ''."""
    return os.environ.get(JOB, "") if os.environ.get("SLURM_JOB_NODELIST") else ""


@dataclass(slots=True)
class _Step:
    process: subprocess.Popen[bytes]
    log: Path


class SlurmLauncher(ClusterLauncher):
    """To be used inside an allocation, see :func:`inside`."""

    def __init__(
        self,
        *,
        slots: int | None = None,
        most: int | None = None,
        preload: Sequence[str] = (),
        nodelist: Sequence[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        """`nodelist`: only these nodes of the allocation. `options`: more words for srun, such as --container-image."""
        super().__init__(slots=slots, most=most, preload=preload)
        self._nodelist, self._options = tuple(nodelist), tuple(options)
        self._steps: dict[str, _Step] = {}
        self._holding: int | None
        self._logs, self._holding = scratch.make("launch-slurm-")

    def _start_agents(self) -> Collection[str]:
        if not inside():
            raise LaunchError(f"this process is in no Slurm allocation: {JOB} is not set")
        names = expand(os.environ["SLURM_JOB_NODELIST"])
        if foreign := sorted(set(self._nodelist) - set(names)):
            raise LaunchError(f"{', '.join(foreign)} is not in the allocation, which has {', '.join(names)}")
        names = [name for name in names if name in (self._nodelist or names)]
        for name in names:
            self._srun(name)
        return names

    def _srun(self, name: str) -> None:
        log = self._logs / f"{name}.log"
        # --overlap, because all CPUs of the node are the agent's, and rungs share them as slots allow; without --mem a
        # step takes all the memory, and the next would wait for it: with --mem=0 it may use what the job has.
        step = [
            *("srun", "--nodes=1", "--ntasks=1", f"--nodelist={name}", "--overlap", "--mem=0", "--input=none"),
            *("--kill-on-bad-exit=0", "--unbuffered", f"--cpus-per-task={_cpus(name)}", *self._options),
        ]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*step, *self._command(name, sys.executable)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=_outer() | self._environment(),
                start_new_session=True,  # Ctrl-C is for the launcher, which then ends its agents in order
            )
        self._steps[name] = _Step(process, log)

    def _replace_agent(self, name: str) -> bool:
        self._srun(name)
        return True

    def _how_it_ended(self, name: str) -> str:
        step = self._steps.get(name)
        if step is None:
            return "there is no step"
        if name in self._nodes:  # its wire is closed: srun is about to say why
            with suppress(subprocess.TimeoutExpired):
                step.process.wait(SEEN)
        code = step.process.poll()
        if code is None:
            return ""
        how = f"srun ended with {name_of(-code) if code < 0 else f'exit code {code}'}"
        return "\n".join(filter(None, (how, logs.tail(step.log))))

    def _end_agent(self, name: str) -> None:
        step = self._steps.pop(name, None)
        if step is None:
            return
        if step.process.poll() is None:
            # Not SIGINT, whose first only asks for the state of tasks: SIGTERM is passed on to the agent.
            step.process.send_signal(signal.SIGTERM)
            until = time.monotonic() + PATIENCE
            while step.process.poll() is None and time.monotonic() < until:
                time.sleep(0.02)
            end_group(step.process.pid)
            step.process.wait()

    def _why_stopped(self) -> str:
        """Slurm's word, where the job is being ended: its time limit, a cancellation, a preemption."""
        with suppress(SlurmError, LookupError):
            found = fields(ask("scontrol", "-o", "show", "job", os.environ[JOB]))
            limit = found.get("TimeLimit", "")
            if 60 * (minutes(limit) - minutes(found["RunTime"])) < NEAR:
                return f"the time limit of Slurm job {os.environ[JOB]} ({limit}) was near"
            state = found["JobState"]
            if state == "COMPLETING":  # it does not say yet what it is going to be
                state = "CANCELLED" if found.get("PreemptTime", "None") == "None" else "PREEMPTED"
            if state != "RUNNING":
                return JobState(id=os.environ[JOB], state=state).words
        return super()._why_stopped()

    def _stop(self) -> None:
        shutil.rmtree(self._logs, ignore_errors=True)
        if self._holding is not None:
            os.close(self._holding)
            self._holding = None


def _cpus(name: str) -> int:
    """That the allocation has on a node: Slurm says '4(x3),2', in the order of its nodes."""
    counts: list[int] = []
    for part in os.environ.get("SLURM_JOB_CPUS_PER_NODE", "1").split(","):
        count, _, times = part.rstrip(")").partition("(x")
        counts += [int(count)] * int(times or 1)
    names = expand(os.environ["SLURM_JOB_NODELIST"])
    return dict(zip(names, counts, strict=False)).get(name, 1)


def _outer() -> dict[str, str]:
    """What a batch script was started with, without what it says of itself and srun would take for options."""
    kept = ("SLURM_CONF", JOB, "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NUM_NODES")
    other = ("SLURM_CLUSTER_NAME", "SLURM_WORKING_CLUSTER")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", PARENT))}
    return env | {name: os.environ[name] for name in (*kept, *other) if name in os.environ}
