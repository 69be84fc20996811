"""What a rank's process does before and after the entry."""

from __future__ import annotations

import faulthandler
import importlib
import json
import operator
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from launch.logs import log_of
from launch.process import PARENT, be_seen_by, die_with_parent

INIT_METHOD = "LAUNCH_INIT_METHOD"  # for init_process_group; not set under torch elastic, which has its own
ASKS = "LAUNCH_ASKS"  # a folder: a rank that watches it may say more about itself before it is ended, see `asked_of`
STACKS = signal.SIGUSR1  # makes a rank write the stacks of all its threads to its log
COULD_NOT_START = 127  # as shells say it


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What the ranks of a job on one node have in common."""

    folder: Path  # of the logs
    scratch: Path  # private to the job and this node; where ranks leave word for their agent
    entry: str
    payload: Mapping[str, Any]
    argv: tuple[str, ...]

    def write(self) -> Path:
        path = self.scratch / "task.json"
        path.write_text(json.dumps(asdict(self), default=str))
        return path

    @classmethod
    def read(cls, path: Path) -> Self:
        values = json.loads(path.read_text())
        paths = {name: Path(values[name]) for name in ("folder", "scratch")}
        return cls(**(values | paths | {"argv": tuple(values["argv"])}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What a rank that ended by itself left for its agent."""

    code: int
    at: float  # on the node's monotonic clock: when the entry returned or raised
    error: str  # traceback, or ''
    summary: str  # the exception in one line, or ''

    def write(self, scratch: Path, rank: int) -> None:
        leave(word_of(scratch, rank), json.dumps(asdict(self)))

    @classmethod
    def read(cls, scratch: Path, rank: int) -> Self | None:
        with suppress(OSError):
            return cls(**json.loads(word_of(scratch, rank).read_text()))
        return None


def leave(path: Path, text: str) -> None:
    """Writes a file that is never seen half written."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text)
    part.rename(path)


def word_of(scratch: Path, rank: int) -> Path:
    return scratch / f"word-{rank:05d}.json"


def pid_of(scratch: Path, rank: int) -> Path:
    """Where a rank that its agent did not start itself leaves its process id."""
    return scratch / f"pid-{rank:05d}"


def asked_of(scratch: Path) -> Path:
    """Made by the agent when ranks are going to be ended because one hangs or has failed.

    A rank that wants to be waited for then leaves `watch-00000` there when it starts, and `told-00000` when it has
    said, into files of its own, what there is to say.
    """
    return scratch / "ask"


def watch_of(scratch: Path, rank: int) -> Path:
    return scratch / f"watch-{rank:05d}"


def told_of(scratch: Path, rank: int) -> Path:
    return scratch / f"told-{rank:05d}"


def call(entry: str, payload: Mapping[str, Any]) -> None:
    module, _, function = entry.partition(":")
    operator.attrgetter(function)(importlib.import_module(module))(payload)


def work(task: Task, rank: int) -> NoReturn:
    """Calls the entry, leaves word of how that went, and ends the process without running any exit handler.

    Exit handlers of a forked rank are those of the server, which lives on.
    """
    faulthandler.enable(file=2)
    faulthandler.register(STACKS, file=2, all_threads=True)
    code, error, summary = 0, "", ""
    try:
        call(task.entry, task.payload)
        at = time.monotonic()
    except BaseException as raised:
        at = time.monotonic()
        if isinstance(raised, SystemExit) and (raised.code is None or isinstance(raised.code, int)):
            code = (raised.code or 0) & 0xFF
        elif isinstance(raised, SystemExit):
            code = 1
            _say(f"{raised.code}\n")
        else:
            code = 1
            frames = raised.__traceback__
            while frames and frames.tb_next and frames.tb_frame.f_code.co_filename == __file__:
                frames = frames.tb_next  # from the entry on
            error = "".join(traceback.format_exception(type(raised), raised, frames))
            summary = ": ".join((type(raised).__name__, *str(raised).strip().splitlines()[:1]))
            _say(error)
    with suppress(OSError):  # the scratch folder goes away when the job is being ended
        Word(code=code, at=at, error=error, summary=summary).write(task.scratch, rank)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


def _say(text: str) -> None:
    """To the log, whose disk may be full: the agent gets to know all the same."""
    with suppress(OSError):
        sys.stderr.write(text)
        sys.stderr.flush()


def redirect(log: Path) -> None:
    """Nothing to read; all output, of whatever language, appended to the log."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, target in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(file)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a killed rank has said what it printed


def forked(task: Task, rank: int, env: Mapping[str, str], parent: int, forget: Callable[[], None]) -> NoReturn:
    """The life of a rank that was forked from a server, as like that of a new process as can be.

    Signals are blocked on entry, until none of them can reach the server's handlers; `forget` closes what the server
    has open.
    """
    try:
        os.setpgid(0, 0)
        forget()
        for signum in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM):
            signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        redirect(log_of(task.folder, rank))
        die_with_parent(parent)
        be_seen_by(parent)
        os.environ.update(env)
        tempfile.tempdir = None  # the server has looked for its own
        sys.argv = [task.entry]
        # Libraries that draw their first seed from the system would otherwise agree on all ranks.
        random.seed()
        if (numpy := sys.modules.get("numpy.random")) is not None:
            numpy.seed()
        work(task, rank)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(COULD_NOT_START)


def main() -> NoReturn:
    """The life of a rank in a new process: `python -m launch.rank TASK`, with RANK in the environment."""
    task, rank = Task.read(Path(sys.argv[1])), int(os.environ["RANK"])
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    redirect(log_of(task.folder, rank))
    parent = int(os.environ.pop(PARENT))
    die_with_parent(parent)
    be_seen_by(parent)
    sys.path.insert(0, os.getcwd())
    if task.entry:
        sys.argv = [task.entry]
        faulthandler.register(STACKS, file=2, all_threads=True)  # before anybody knows where to send it
        leave(pid_of(task.scratch, rank), str(os.getpid()))
        work(task, rank)
    leave(pid_of(task.scratch, rank), str(os.getpid()))
    # A Python command then writes its stacks on SIGABRT, which ends it.
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a command would inherit that
        signal.signal(signum, signal.SIG_DFL)
    try:
        os.execvp(task.argv[0], task.argv)
    except OSError as error:
        text = f"cannot execute {task.argv[0]!r}: {error.strerror}"
        print(text, file=sys.stderr)
        word = Word(code=COULD_NOT_START, at=time.monotonic(), error=text, summary=text)
        word.write(task.scratch, rank)
        os._exit(COULD_NOT_START)


if __name__ == "__main__":
    main()
