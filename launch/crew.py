"""The ranks of one job on one node: started, watched and ended."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch import logs, memory, rank, shared, spying
from launch.process import PARENT, alive, device_context, end_group, free_port
from launch.wire import Message

GRACE = 0.3  # seconds that ranks have to end by themselves once one of them has failed
STACKS = 0.5  # seconds that ranks have to write their stacks
ANSWER = 3.0  # seconds that ranks which watch for it have to say what they wait for, when they hang
LAST_WORDS = 1.0  # and when another has failed
PULSE = 1.0  # seconds between two looks for a sign of life, at most
GIVE_UP = 5.0  # seconds after SIGKILL: a process that waits for a device may outlive it for ever
NEVER = math.inf
LEAST = 1 << 14  # bytes: a disk with less than that is full
TEMPORARY = "tmp"  # in the scratch folder of a job: where its ranks make temporary files

# How long ago a rank may have died when its death is seen, seconds. What others say in this time is a consequence.
NOTICED = 0.05
# A process that dies of these dies of itself, not because a peer is gone; SIGABRT and SIGTERM can be either.
FATAL = (-signal.SIGKILL, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE)  # as exit codes

# Variables that are read when the interpreter or a library is loaded: too late for a process that is forked.
READ_AT_IMPORT = (
    *("PYTHON", "LD_", "MALLOC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_"),
    *("TORCH_LOGS", "TORCH_COMPILE", "TORCH_DISTRIBUTED_DEBUG", "TORCHDYNAMO_", "TORCHINDUCTOR_", "TRITON_"),
)


def spawn(module: tuple[str, ...], env: Mapping[str, str], log: Path) -> int:
    """Starts `python -m module arguments...` in its own process group, output to `log`; returns its process id.

    `env` is added to the environment of this process.
    -P: the folder where the user works may hold a launch.py of its own.
    """
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-P", "-m", *module],
        {**os.environ, **env, PARENT: str(os.getpid())},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setpgroup=0,
        setsigdef=signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP},
    )


def _full(*folders: Path) -> str:
    """Of a rank that has failed without a word, where no word could be written any more: as Python would have said."""
    for folder in folders:
        with contextlib.suppress(OSError):
            there = os.statvfs(folder)
            if there.f_bavail * there.f_frsize < LEAST:
                return f"OSError: [Errno {errno.ENOSPC}] No space left on device: '{folder}'"
    return ""


@dataclass(slots=True, kw_only=True)
class Member:
    """One rank, as its agent sees it."""

    rank: int
    pid: int = 0
    over: bool = False
    killed: bool = False  # told to end, so its end says nothing about it
    late: bool = False  # was there at the deadline, or when the job had stalled


class Pulse:
    """When the files of some ranks last grew."""

    def __init__(self, folder: Path, ranks: Sequence[int], suffix: str) -> None:
        self._folder, self._patterns = folder, [f"rank-{number:05d}{suffix or '*'}" for number in ranks]
        self._size, self._grew = -1, -math.inf

    def feel(self, now: float) -> float:
        """When they were last seen to have changed, on the clock of `now`."""
        size = 0
        for pattern in self._patterns:
            with contextlib.suppress(OSError):
                size += sum(path.stat().st_size for path in self._folder.glob(pattern))
        if size != self._size:
            self._size, self._grew = size, now
        return self._grew


class Crew:
    """Forked ranks, or one new process per rank where a fork would not do."""

    def __init__(self, order: Message, *, scratch: Path, tell: Callable[[Message], None]) -> None:
        """`order` is the request as it came; `scratch` is a folder of this crew's own, which it removes when over."""
        self.job: str = order["job"]
        self.folder = Path(order["folder"])
        self.members = [Member(rank=number) for number in order["ranks"]]
        self.over = False
        self.well = True  # no rank has ended with anything but code 0
        self.due = NEVER  # when `tick` has something to do, on the monotonic clock
        self._order = order
        self._tell = tell
        self._phase = "running"  # then perhaps grace or stacks, then killed
        self._deadline = self._patience = NEVER
        self._stalled = False
        self._spy = 0  # process id of what asks the kernel about ranks that do not answer
        self._oom_kills = memory.oom_kills()
        self._shared_before, self._shared = shared.names(), set[str]()  # before the job; what its ranks have mapped
        self._stall = order.get("stall") or NEVER
        self._pulse = Pulse(self.folder, order["ranks"], order.get("pulse", ""))
        self._error = ""
        self._notes: list[str] = []
        self._unstarted = False
        self._task = rank.Task(
            folder=self.folder,
            scratch=scratch,
            entry=order["entry"],
            payload=order["payload"],
            argv=tuple(order["argv"]),
        )
        self._master = {
            "MASTER_ADDR": order.get("master_addr") or "127.0.0.1",
            "MASTER_PORT": str(order.get("master_port") or free_port()),
            rank.INIT_METHOD: order.get("init_method") or f"file://{scratch / 'store'}",
            rank.ASKS: str(scratch),
        }
        self.started = time.monotonic()

    # Starting.

    def start(self, *, watch: Callable[[int], None], forget: Callable[[], None]) -> None:
        """Starts the ranks; `watch` is told each process id, `forget` closes the agent's files in a forked child."""
        path = self._prepare()
        reason = self._why_not_fork()
        if reason and self._task.entry:
            self._notes.append(f"ranks were started in new processes, not forked: {reason}")
        for member in self.members:
            env = self._environment(member.rank)
            if reason:
                log = logs.log_of(self._task.folder, member.rank)
                member.pid = spawn(("launch.rank", str(path)), env=env, log=log)
            else:
                member.pid = self._fork(member.rank, env, forget)
            watch(member.pid)
            self._tell({"said": "started", "job": self.job, "rank": member.rank, "pid": member.pid})

    def fail(self, error: str) -> None:
        """The ranks could not be started, or not all of them."""
        self._error, self._unstarted, self.well = error, True, False
        self.kill()
        for member in self._living():
            if not member.pid:
                self._ended(member, None, time.monotonic())
        self._finish_if_empty(time.monotonic())

    def _prepare(self) -> Path:
        """Empty logs, and the task file."""
        (self._task.scratch / TEMPORARY).mkdir(parents=True)
        self._task.folder.mkdir(parents=True, exist_ok=True)
        for member in self.members:
            logs.log_of(self._task.folder, member.rank).write_bytes(b"")
        self.started = time.monotonic()
        self._deadline = self.started + self._order["deadline"]
        self._pulse.feel(self.started)
        self._look_again(self.started)
        return self._task.write()

    def _fork(self, number: int, env: Mapping[str, str], forget: Callable[[], None]) -> int:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        agent = os.getpid()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        pid = os.fork()
        if pid == 0:
            rank.forked(self._task, number, env, agent, forget)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        # The child does this too, so that it has been done before either goes on.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.setpgid(pid, pid)
        return pid

    def _why_not_fork(self) -> str:
        if self._task.argv:
            return "it is a command"
        early = [
            name
            for name, value in self._order["env"].items()
            if name.startswith(READ_AT_IMPORT) and os.environ.get(name) != value
        ]
        return f"{', '.join(early)} is read at import" if early else device_context()

    def _environment(self, number: int) -> dict[str, str]:
        """What torchrun would set for this rank, and what the job asks for."""
        ranks: list[int] = self._order["ranks"]
        return {
            "RANK": str(number),
            "LOCAL_RANK": str(ranks.index(number)),
            "WORLD_SIZE": str(self._order["world_size"]),
            "LOCAL_WORLD_SIZE": str(len(ranks)),
            "GROUP_RANK": str(self._order.get("group_rank", 0)),
            **self._master,
            # What a rank leaves there goes with the job, even if the rank is killed.
            "TMPDIR": str(self._task.scratch / TEMPORARY),
            **self._order["env"],
        }

    # Watching.

    def child_ended(self, pid: int, status: int, now: float) -> None:
        """For each process id that was to be watched: `status` is from waitpid, and its group has been ended."""
        member = next(member for member in self.members if member.pid == pid)
        self._ended(member, os.waitstatus_to_exitcode(status), now)
        self._finish_if_empty(now)

    def _since(self, member: Member, code: int | None, seen: float) -> float:
        """When the end of a rank began, as far as can be told, where it was seen to be over at `seen`."""
        word = rank.Word.read(self._task.scratch, member.rank)
        if word and not (code and word.code == 0):
            return word.at
        return seen - (NOTICED if code in FATAL else 0.0)

    def _ended(self, member: Member, code: int | None, seen: float) -> None:
        """Reports the end of a rank. `code` is negative for a signal, None where it is not known."""
        member.over = True
        signum = -code if code is not None and code < 0 else None
        word = rank.Word.read(self._task.scratch, member.rank)
        log = logs.log_of(self._task.folder, member.rank)
        killed = member.killed and code != 0  # one that still ends well has not been hurt
        bad = code != 0 and not killed
        self.well &= code == 0
        error = word.error if word else ""
        starved = memory.said_of(self._oom_kills) if bad and signum == signal.SIGKILL else ""
        if bad and not error:
            starved = starved or _full(self.folder, self._task.scratch)
        after = bad and word is not None and word.code == 0  # as libraries do whose exit handlers abort
        self._tell(
            {
                "said": "ended",
                "job": self.job,
                "rank": member.rank,
                "pid": member.pid,
                "code": code if signum is None else None,
                "signal": signum,
                "error": error or starved,
                "summary": (word.summary if word else "") or starved,
                "tail": logs.tail(log) if bad and not error else "",
                "ended": seen - self.started,
                "since": self._since(member, code, seen) - self.started,
                "killed": killed,
                "after": after,
                "late": member.late,
                "stalled": member.late and self._stalled,
                "where": logs.where(log) if member.late else "",
            }
        )
        if bad and not after and self._phase == "running":
            self._note_shared()
            self._ask(LAST_WORDS)
            self.end_soon(GRACE)

    def _finish_if_empty(self, now: float) -> None:
        if self.over or not all(member.over for member in self.members):
            return
        self.over, self.due = True, NEVER
        shared.remove(self._shared - self._shared_before)
        shutil.rmtree(self._task.scratch, ignore_errors=True)
        self._tell(
            {
                "said": "over",
                "job": self.job,
                "seconds": now - self.started,
                "error": self._error,
                "unstarted": self._unstarted,
                "notes": self._notes,
            }
        )

    # Ending.

    def end_soon(self, grace: float) -> None:
        """All ranks are to be gone after `grace` seconds."""
        if self._phase == "running":
            self._phase, self.due = "grace", time.monotonic() + grace

    def kill(self) -> None:
        """SIGKILL to all that these ranks have started, too."""
        self._phase, self.due = "killed", time.monotonic() + GIVE_UP
        if self._spy and alive(self._spy):
            end_group(self._spy)
        self._note_shared()
        for member in self._at_work():
            member.killed = True
        for member in self._living():
            if member.pid:
                end_group(member.pid)

    def _note_shared(self) -> None:
        """What is going to stay behind: those that end in order take theirs away."""
        if shared.names() - self._shared_before - self._shared:
            self._shared |= shared.mapped(member.pid for member in self._at_work() if member.pid)

    def tick(self, now: float) -> None:
        """Does what is due."""
        if now < self.due:
            return
        if self._phase == "running":
            self._stalled = now - self._pulse.feel(now) >= self._stall
            if not self._stalled and now < self._deadline:
                self._look_again(now)
                return
            late = self._at_work()
            self._phase, self.due = ("stacks", now + STACKS) if late else ("grace", now + GIVE_UP)
            self._ask(ANSWER)
            for member in late:
                member.late = member.killed = True
                self._ask_for_stacks(member)
        elif self._phase in ("grace", "stacks"):
            if (now < self._patience and self._silent()) or (self._phase == "stacks" and self._spying(now)):
                self.due = now + 0.05
            else:
                self.kill()
        else:
            assert self._phase == "killed", self._phase
            for member in self._living():
                self._notes.append(f"rank {member.rank} (process {member.pid}) has outlived SIGKILL by {GIVE_UP:g} s")
                self._ended(member, None, now)
            self._finish_if_empty(now)

    def _look_again(self, now: float) -> None:
        self._note_shared()
        self.due = min(self._deadline, now + min(PULSE, self._stall / 4) if self._stall < NEVER else NEVER)

    def _ask(self, patience: float) -> None:
        """Ranks that watch for it are to say what they wait for, and are not ended before they have, or it is late."""
        with contextlib.suppress(OSError):
            rank.asked_of(self._task.scratch).touch()
            self._patience = time.monotonic() + patience

    def _silent(self) -> list[Member]:
        """Those at work that have been asked, and are going to answer."""
        scratch = self._task.scratch
        return [
            member
            for member in self._at_work()
            if rank.watch_of(scratch, member.rank).exists() and not rank.told_of(scratch, member.rank).exists()
        ]

    def _spying(self, now: float) -> bool:
        """Whether stacks are still being taken of ranks that have hung and do not write them themselves."""
        if self._spy:
            return now < self._patience and alive(self._spy)
        logs_of = {member.rank: logs.log_of(self._task.folder, member.rank) for member in self._at_work()}
        silent = {member.rank for member in self._silent()}
        mute = [
            (member.pid, logs_of[member.rank])
            for member in self._at_work()
            if member.late and member.pid and (member.rank in silent or not logs.where(logs_of[member.rank]))
        ]
        if not mute or not self._task.entry or not spying.spy():
            return False
        self._patience = now + spying.LONGEST
        with contextlib.suppress(OSError):
            self._spy = spawn(spying.arguments(mute), env={}, log=Path(os.devnull))
        return bool(self._spy)

    def _living(self) -> list[Member]:
        return [member for member in self.members if not member.over]

    def _at_work(self) -> list[Member]:
        """Those of the living that have not ended without this crew knowing yet."""
        return self._living()

    def _ask_for_stacks(self, member: Member) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._task.entry and member.pid:
                os.kill(member.pid, rank.STACKS)
            elif member.pid:
                # A command may be anything: if it is Python, this makes it write its stacks and end. No core dump.
                _, most = resource.prlimit(member.pid, resource.RLIMIT_CORE)
                resource.prlimit(member.pid, resource.RLIMIT_CORE, (0, most))
                os.kill(member.pid, signal.SIGABRT)
