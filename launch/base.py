"""What a launcher is asked (Job) and what it answers (Exit)."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self


class LaunchError(ValueError):
    """The launcher itself cannot start: a preload module that cannot be imported, no agent. No job is at fault."""


class AgentKilled(LaunchError):
    """An agent was killed by a signal before it was ready: another may do better."""


class State(StrEnum):
    """How a job ended."""

    DONE = auto()  # every rank left with code 0
    FAILED = auto()  # a rank ended badly by itself
    TIMED_OUT = auto()  # ranks were still there at the deadline, or had shown no sign of life for too long
    CANCELLED = auto()  # ended, or never started, because the caller stopped
    LOST = auto()  # what started the ranks is gone: nothing can be said about the job


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Ranks to start together; raises ValueError where the fields contradict each other."""

    name: str  # unique among the jobs of one run
    folder: Path  # made if missing; rank-00000.log, ..., job.json and exit.json are written there
    world_size: int
    entry: str = ""  # 'package.module:function', called with the payload on every rank
    payload: Mapping[str, Any] = field(default_factory=dict)  # anything JSON can hold
    argv: tuple[str, ...] = ()  # instead of entry: a command, one process per rank, in torchrun's environment
    env: Mapping[str, str] = field(default_factory=dict)  # set on every rank before the entry is imported
    deadline: float = 300.0  # seconds from the start of the ranks
    stall: float | None = None  # seconds without a sign of life after which the job is taken for hung; None for never
    pulse: str = ""  # a sign of life is that a file rank-00000<pulse> of some rank grows; '' for any file of a rank
    nodes: tuple[str, ...] = ()  # only these, by the names that the launcher gives them; () for any
    avoid: tuple[str, ...] = ()  # rather not these, where the others have room
    cold: bool = False  # under torch elastic, in new processes, instead of forked from the warm server

    def __post_init__(self) -> None:
        where = f"job {self.name!r}"
        if not self.name:
            raise ValueError("a job needs a name")
        if self.world_size < 1:
            raise ValueError(f"{where}: world_size ({self.world_size}) must be at least 1")
        if bool(self.entry) == bool(self.argv):
            raise ValueError(f"{where}: give either an entry or an argv")
        if self.entry and not all(self.entry.partition(":")):
            raise ValueError(f"{where}: entry {self.entry!r} must read 'package.module:function'")
        if not (self.deadline > 0 and math.isfinite(self.deadline)):
            raise ValueError(f"{where}: deadline ({self.deadline}) must be a positive number of seconds")
        if self.stall is not None and not (self.stall > 0 and math.isfinite(self.stall)):
            raise ValueError(f"{where}: stall ({self.stall}) must be a positive number of seconds, or None")
        if wrong := [key for key, value in self.env.items() if not (isinstance(key, str) and isinstance(value, str))]:
            raise ValueError(f"{where}: env must map text to text, not so for {wrong}")
        try:
            json.dumps(dict(self.payload))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}: the payload must be JSON: {error}") from error

    def as_json(self) -> dict[str, Any]:
        """For job.json. Environment and planted fault are left out: who reads a stored run must detect a fault."""
        return {
            "name": self.name,
            "folder": str(self.folder),
            "world_size": self.world_size,
            "entry": self.entry,
            "payload": {key: value for key, value in self.payload.items() if key != "fault"},
            "argv": list(self.argv),
            "deadline": self.deadline,
            "stall": self.stall,
            "pulse": self.pulse,
            "cold": self.cold,
        }

    def write(self) -> None:
        """Makes the folder, with job.json and without the exit.json of an earlier run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "exit.json").unlink(missing_ok=True)
        _write(self.folder / "job.json", self.as_json())


@dataclass(frozen=True, slots=True, kw_only=True)
class RankExit:
    """How one rank ended. Neither code nor signal: it is not known (the rank never started, or was lost)."""

    rank: int
    host: str
    pid: int  # 0 where it is not known
    code: int | None
    signal: int | None
    error: str  # the rank's own traceback, or what else explains its end, or ''
    log: Path
    ended: float  # seconds since the job started
    killed: bool = False  # the launcher was ending it: whatever it ended with is no failure of its own
    where: str = ""  # of one that hung: where its stack was, 'wait (threading.py:320), from step (loop.py:33)'

    @property
    def failed(self) -> bool:
        """It ended badly, and by itself."""
        return not self.killed and (self.signal is not None or self.code not in (0, None))

    def as_json(self) -> dict[str, Any]:
        """For exit.json. The log is named relative to the job's folder, so that a run can be moved."""
        return {name: getattr(self, name) for name in self.__slots__} | {"log": self.log.name}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a job ended."""

    job: str
    state: State
    ranks: tuple[RankExit, ...]
    first_failed: int | None  # the rank whose failure came first
    error: str  # '' if done; else what happened first, on which rank: a first line that says it all, then the details
    hosts: tuple[str, ...]  # per rank
    seconds: float  # from the start of the ranks to the end of the last one
    notes: tuple[str, ...] = ()  # where the launcher did otherwise than asked, and why
    counters: tuple[Mapping[str, Any], ...] = ()  # of each node: host, devices, and what rose of their errors meanwhile

    def as_json(self) -> dict[str, Any]:
        """For exit.json."""
        values = {name: getattr(self, name) for name in self.__slots__}
        lists = {name: list(values[name]) for name in ("hosts", "notes", "counters")}
        return values | lists | {"ranks": [rank.as_json() for rank in self.ranks]}

    def write(self, folder: Path) -> None:
        """Writes exit.json."""
        _write(folder / "exit.json", self.as_json())

    @classmethod
    def from_json(cls, values: Mapping[str, Any], folder: Path) -> Self:
        """The Exit that was written to `folder`/exit.json."""
        ranks = tuple(RankExit(**(rank | {"log": folder / rank["log"]})) for rank in values["ranks"])
        tuples = {name: tuple(values.get(name, ())) for name in ("hosts", "notes", "counters")}
        known = {name: value for name, value in values.items() if name != "checksum"}
        return cls(**(known | tuples | {"state": State(values["state"]), "ranks": ranks}))


def _write(path: Path, values: dict[str, Any]) -> None:
    """A reader finds all of it or none, and by the checksum whether it is still what was written."""
    part = path.with_name(f"{path.name}.part")
    checksum = zlib.crc32(json.dumps(values, sort_keys=True).encode())
    part.write_text(json.dumps(values | {"checksum": checksum}, indent=1) + "\n")
    part.rename(path)


class Launcher(Protocol):
    """Starts jobs somewhere and says how each one ended."""

    def run(self, jobs: Iterable[Job], on_start: Callable[[Job], None] = ...) -> Iterator[Exit]:
        """The exits, in order of completion. Closing the iterator early ends every rank."""
        ...

    def close(self) -> None:
        """Ends everything that was started. May be called twice."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
