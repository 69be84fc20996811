"""Reads the counters of a node around each job, without making its agent wait for the driver."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launch.counters import LONGEST, Counts, Kernel, ask, asked, parse, rise
from launch.wire import Message


@dataclass(slots=True)
class _Reading:
    """A process that prints counters, after a job that is over."""

    report: Message
    path: Path
    due: float


class Counting:
    """What the agent of a node keeps. The last reading before a job began is the one that it is compared with."""

    def __init__(self, scratch: Path, host: Callable[[], str]) -> None:
        self._kernel, self._scratch, self._host = Kernel(), scratch, host
        self._devices, counts = parse(ask())
        self._last = counts | self._kernel.read()
        self._before: dict[str, Counts] = {}
        self._readings: dict[int, _Reading] = {}  # by process id

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Files that a forked rank has to close."""
        return () if self._kernel.log < 0 else (self._kernel.log,)

    @property
    def processes(self) -> set[int]:
        """Children of the agent that are at work."""
        return set(self._readings)

    @property
    def due(self) -> float:
        return min((reading.due for reading in self._readings.values()), default=math.inf)

    def begin(self, job: str) -> None:
        """Its ranks are about to start."""
        self._before[job] = dict(self._last)

    def finish(self, report: Message) -> Message | None:
        """Takes the report that a job is over: gives it back with what rose, or None where that takes a moment."""
        command = asked() if self._devices else ()
        if not command:
            return self._counted(report, {})
        path = self._scratch / f"counters-{len(self._before)}-{time.monotonic_ns()}"
        try:
            pid = os.posix_spawn(
                command[0],
                command,
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, str(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setpgroup=0,
                setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
            )
        except OSError:
            return self._counted(report, {})
        self._readings[pid] = _Reading(report, path, time.monotonic() + LONGEST)
        return None

    def ended(self, pid: int) -> Message | None:
        """To be told of every child that has ended; the report that is complete by it."""
        reading = self._readings.pop(pid, None)
        if reading is None:
            return None
        said = ""
        with suppress(OSError):
            said = reading.path.read_text(errors="replace")
            reading.path.unlink()
        return self._counted(reading.report, parse(said)[1])

    def tick(self, now: float) -> None:
        """A driver that does not answer is not waited for."""
        for pid, reading in self._readings.items():
            if now >= reading.due:
                reading.due = math.inf
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)

    def stop(self) -> list[Message]:
        """The reports that were waiting, as they are: the agent is to end."""
        self.tick(math.inf)
        reports = [self._counted(reading.report, {}) for reading in self._readings.values()]
        self._readings.clear()
        return reports

    def _counted(self, report: Message, counts: Counts) -> Message:
        self._last |= counts | self._kernel.read()
        rose = rise(self._before.pop(report["job"], self._last), self._last)
        return report | {"counters": [{"host": self._host(), "devices": self._devices, "rose": rose}]}
