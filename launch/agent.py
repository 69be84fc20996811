"""One per node: starts the ranks of jobs from a warm server, watches them and ends them."""

from __future__ import annotations

import argparse
import contextlib
import gc
import getpass
import importlib
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from types import FrameType

from launch import scratch
from launch.cold import ColdCrew
from launch.counting import Counting
from launch.crew import Crew
from launch.process import PARENT, adopt_orphans, children, die_with_parent, end_group
from launch.rank import INIT_METHOD
from launch.wire import Message, Wire

LAST_WAIT = 1.0  # seconds for killed ranks to be gone when the agent ends
# More threads than cores make a small training run ten times slower, or worse: one thread per rank, as torchrun does.
THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class Agent:
    """A single-threaded loop, so that it can fork: requests, ends of processes and deadlines.

    Requests come as JSON lines on standard input, reports leave as JSON lines on standard output:

        do start     job folder ranks world_size entry payload argv env deadline cold
                     (stall pulse; group_rank master_addr master_port init_method, for a job on several nodes)
        do cancel    job (grace): its ranks are to be gone, at once or after so many seconds
        do close     all ranks are to be gone, and the agent; the end of standard input means the same

        said ready   host pid scratch notes
        said broken  error: a preload module could not be imported
        said started job rank pid
        said ended   job rank pid code signal error summary tail ended since killed after late stalled where
        said over    job seconds error notes: no rank of it is left on this node; counters [{host devices rose}]
                     unstarted: the node is to blame, which could not start them
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._crews: dict[str, Crew] = {}
        self._watched: dict[int, Crew] = {}  # by process id
        self._kept = children()  # helpers of preloaded modules: not ours to end
        self._scratch, self._holding = scratch.make("launch-")
        self._host = socket.gethostname()
        self._started = 0
        self._closing = False
        self._signalled = False  # ends because somebody other than its launcher wants it to
        self._parent = os.getppid()
        self._waker, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # Handlers do nothing: the numbers of signals arrive through the pipe, between two steps of the loop.
        for signum in (signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, _ignore)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self._counting = Counting(self._scratch, lambda: self._host)
        self._own = (wire.reading, wire.writing, self._waker, waker, self._holding, *self._counting.descriptors)
        adopt_orphans()

    def serve(self, notes: Sequence[str]) -> None:
        """Returns when asked to close, or when nobody listens any more; no rank is left then."""
        try:
            self._tell(
                {
                    "said": "ready",
                    "host": self._host,
                    "pid": os.getpid(),
                    "scratch": str(self._scratch),
                    "notes": list(notes),
                }
            )
            while self._wire.open and not self._closing:
                self._step()
        finally:
            self._end_all()

    def _tell(self, report: Message) -> None:
        if report["said"] == "over" and not self._closing:
            self._tell_counted(self._counting.finish(report))
        else:
            self._wire.send(report)

    def _tell_counted(self, report: Message | None) -> None:
        if report is not None:
            self._wire.send(report)

    def _step(self, longest: float = 3600.0) -> None:
        due = min((self._counting.due, *(crew.due for crew in self._crews.values())))
        self._wire.wait(min(longest, due - time.monotonic()), self._waker)
        with contextlib.suppress(BlockingIOError):
            for signum in os.read(self._waker, 4096):
                self._hear(signum)
        self._reap()
        now = time.monotonic()
        for crew in list(self._crews.values()):
            crew.tick(now)
        self._counting.tick(now)
        self._forget_finished()  # before a new request, which may be for a job of the same name
        for request in self._wire.receive() if not self._closing else ():
            self._do(request)
        self._wire.flush()

    def _hear(self, signum: int) -> None:
        parent_lives = os.getppid() == self._parent
        if signum in (signal.SIGTERM, signal.SIGINT) or (signum == signal.SIGHUP and not parent_lives):
            self._closing = self._signalled = True

    def _do(self, request: Message) -> None:
        match request["do"]:
            case "start":
                self._start(request)
            case "cancel":
                if crew := self._crews.get(request["job"]):
                    crew.end_soon(request.get("grace", 0.0))
            case "close":
                self._closing = True
            case other:
                raise AssertionError(f"unknown request {other!r}")

    def _start(self, request: Message) -> None:
        assert request["job"] not in self._crews, request["job"]
        self._started += 1
        kind = ColdCrew if request["cold"] else Crew
        crew = kind(request, scratch=self._scratch / str(self._started), tell=self._tell)
        self._crews[crew.job] = crew
        self._counting.begin(crew.job)
        try:
            crew.start(watch=lambda pid: self._watched.update({pid: crew}), forget=self._forget_files)
        except OSError as error:  # no memory, no process left, a folder that cannot be written
            crew.fail(f"its ranks could not be started on this node: {error}")

    def _forget_files(self) -> None:
        """In a forked rank: nobody must take it for the agent."""
        signal.set_wakeup_fd(-1)
        for fd in self._own:
            os.close(fd)

    def _reap(self) -> None:
        """Takes leave of every process that has ended: ranks, and what ranks have left behind."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            crew = self._watched.pop(ended.si_pid, None)
            if crew:
                end_group(ended.si_pid)  # while the number cannot belong to anybody else yet
            _, status = os.waitpid(ended.si_pid, 0)
            if crew:
                crew.child_ended(ended.si_pid, status, time.monotonic())
            else:
                self._tell_counted(self._counting.ended(ended.si_pid))

    def _forget_finished(self) -> None:
        self._crews = {name: crew for name, crew in self._crews.items() if not crew.over}
        if not self._crews:
            self._end_orphans()

    def _end_orphans(self) -> None:
        """What has left the process group of its rank and outlived it is a child of the agent by now."""
        for pid in children() - self._kept - self._watched.keys() - self._counting.processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _end_all(self) -> None:
        self._closing = True
        for report in self._counting.stop():
            self._tell_counted(report)
        for crew in self._crews.values():
            crew.kill()
        until = time.monotonic() + LAST_WAIT
        while (self._crews or children() - self._kept) and time.monotonic() < until:
            self._step(longest=0.05)
        shutil.rmtree(self._scratch, ignore_errors=True)


def _user() -> str:
    """As torch writes it."""
    with contextlib.suppress(KeyError, OSError):
        return re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    return f"uid_{os.getuid()}"


def _ignore(signum: int, frame: FrameType | None) -> None:
    pass


def warm_up(modules: Sequence[str]) -> list[str]:
    """Imports what ranks are going to need; returns what is worth telling. Raises what imports raise."""
    for module in modules:
        importlib.import_module(module)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)
    # What is here now is never collected, so its pages stay shared with the ranks.
    gc.collect()
    gc.freeze()
    threads = len(os.listdir("/proc/self/task"))
    # Python 3.12 warns at every fork then; the note below says it once.
    warnings.filterwarnings("ignore", message=".*multi-threaded, use of fork", category=DeprecationWarning)
    return [f"the fork server has {threads} threads: a lock that one of them holds stays locked in ranks"] * (
        threads > 1
    )


def serve(wire: Wire, preload: Sequence[str], make: Callable[[Wire], Agent]) -> None:
    """The life of an agent, once it has a wire to its launcher. Only it says where standard output goes."""
    # Not SIGKILL, so that the scratch folder is removed. The signal also comes when a *thread* of the parent ends.
    die_with_parent(int(os.environ.pop(PARENT, os.getppid())), signal.SIGHUP)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.environ.update(dict.fromkeys(THREADS, "1"))
    # The temporary folder of a rank goes with its job: what has been compiled is to stay where it always was.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"torchinductor_{_user()}"))
    for name in [name for name in os.environ if name.startswith("TORCHELASTIC_") or name == INIT_METHOD]:
        del os.environ[name]  # of a job that this agent is itself part of
    sys.path.insert(0, os.getcwd())
    try:
        notes = warm_up(preload)
    except BaseException:
        wire.send({"said": "broken", "error": traceback.format_exc()})
        sys.exit(1)
    make(wire).serve(notes)


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m launch.agent", description="Starts ranks on this node.")
    arguments.add_argument("--preload", action="append", default=[], help="module to import before ranks are forked")
    preload = arguments.parse_args().preload
    # Modules may print: only this process's own words go to where reports are read.
    wire = Wire(os.dup(0), os.dup(1))
    os.dup2(2, 1)
    serve(wire, preload, Agent)


if __name__ == "__main__":
    main()
