"""Cold starts: the ranks of a job in new processes under torch elastic, which is what torchrun is made of."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from launch import logs
from launch.crew import TEMPORARY, Crew, Member, spawn
from launch.process import PARENT, alive, die_with_parent, end_group
from launch.rank import Task, Word, pid_of

SHUTDOWN = 1  # seconds between the SIGTERM and the SIGKILL that torch elastic sends to ranks once one has failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the process that ran torch elastic leaves for the agent."""

    failures: dict[int, int]  # exit code per failed rank, negative for a signal; ranks not named ended with 0
    seen: dict[int, float]  # when each rank was seen to be over, on the node's monotonic clock
    error: str  # traceback, where torch elastic itself failed

    def write(self, scratch: Path) -> None:
        (scratch / "elastic.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, scratch: Path) -> Result | None:
        try:
            values = json.loads((scratch / "elastic.json").read_text())
        except (OSError, ValueError):
            return None
        by_rank = {name: {int(rank): value for rank, value in values[name].items()} for name in ("failures", "seen")}
        return cls(error=values["error"], **by_rank)


class ColdCrew(Crew):
    """Ranks that torch elastic starts: the agent watches the one process that runs it."""

    _elastic = 0  # process id

    def start(self, *, watch: Callable[[int], None], forget: Callable[[], None]) -> None:
        del forget  # nothing is forked
        path = self._prepare()
        self._log = self._task.folder / "elastic.log"
        self._log.write_bytes(b"")
        module = ("launch.cold", str(path), str(len(self.members)))
        env = {"TMPDIR": str(self._task.scratch / TEMPORARY), **self._order["env"]}
        self._elastic = spawn(module, env=env, log=self._log)
        watch(self._elastic)

    def child_ended(self, pid: int, status: int, now: float) -> None:
        scratch = self._task.scratch
        result = Result.read(scratch)
        if result is None:
            result = Result(failures={}, seen={}, error="" if self._phase == "killed" else self._unexplained(status))
        self._error = result.error
        seen = {member.rank: result.seen.get(member.rank, now) for member in self.members}
        codes: dict[int, int | None] = {}
        for member in self._living():
            if member.pid:
                end_group(member.pid)  # what the rank has left behind
            word = Word.read(scratch, member.rank)
            if result.failures or not (self._error or self._phase == "killed"):
                codes[member.rank] = result.failures.get(member.rank, 0)
            else:  # torch elastic had no time to tell
                codes[member.rank] = word.code if word else -signal.SIGKILL if member.killed else None
        since = {member.rank: self._since(member, codes[member.rank], seen[member.rank]) for member in self._living()}
        first = min((since[rank] for rank, code in codes.items() if code), default=now)
        for member in self._living():
            code, later = codes[member.rank], since[member.rank] - first
            # Ended by torch elastic because of another.
            if (code == -signal.SIGTERM and later > 0) or (code == -signal.SIGKILL and later > SHUTDOWN / 2):
                member.killed = True
            self._ended(member, code, seen[member.rank])
        self._finish_if_empty(now)

    def _unexplained(self, status: int) -> str:
        return f"torch elastic ended with {os.waitstatus_to_exitcode(status)}\n{logs.tail(self._log)}"

    def kill(self) -> None:
        super().kill()
        if self._elastic:
            end_group(self._elastic)

    def _living(self) -> list[Member]:
        living = super()._living()
        for member in living:
            if not member.pid and (path := pid_of(self._task.scratch, member.rank)).exists():
                member.pid = int(path.read_text())
        return living

    def _at_work(self) -> list[Member]:
        return [member for member in self._living() if not member.pid or alive(member.pid)]


def watch(scratch: Path, world_size: int, seen: dict[int, float]) -> None:
    """Notes when ranks end: torch elastic keeps whole seconds only, too coarse to tell a failure from what follows."""
    poll, unknown, ranks = select.poll(), set(range(world_size)), dict[int, int]()
    while unknown or ranks:
        for rank in [rank for rank in unknown if pid_of(scratch, rank).exists()]:
            unknown.discard(rank)
            try:
                fd = os.pidfd_open(int(pid_of(scratch, rank).read_text()))
            except ProcessLookupError:
                seen[rank] = time.monotonic()
            else:
                ranks[fd] = rank
                poll.register(fd, select.POLLIN)
        for fd, _ in poll.poll(50 if unknown else None):
            seen[ranks.pop(fd)] = time.monotonic()
            poll.unregister(fd)
            os.close(fd)


def elastic(task: Path, scratch: Path, world_size: int) -> dict[int, int]:
    """Runs the ranks; returns the exit codes of those that failed."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=world_size,
        run_id=scratch.name,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        monitor_interval=0.1,
        shutdown_timeout=SHUTDOWN,
        logs_specs=DefaultLogsSpecs(log_dir=str(scratch / "elastic")),  # ranks redirect themselves
    )
    try:
        elastic_launch(config, sys.executable)("-P", "-m", "launch.rank", str(task))
    except ChildFailedError as error:
        return {rank: failure.exitcode for rank, failure in error.failures.items()}
    return {}


def main() -> None:
    """`python -m launch.cold TASK WORLD_SIZE`."""
    die_with_parent(int(os.environ[PARENT]))
    os.environ[PARENT] = str(os.getpid())
    path, world_size = Path(sys.argv[1]), int(sys.argv[2])
    scratch = Task.read(path).scratch
    seen: dict[int, float] = {}
    watching = threading.Thread(target=watch, args=(scratch, world_size, seen), daemon=True)
    watching.start()
    failures, error = {}, ""
    try:
        failures = elastic(path, scratch, world_size)
    except Exception:
        error = traceback.format_exc()
    watching.join(0.2)  # a rank that never said its process id is never seen to end
    Result(failures=failures, seen=dict(seen), error=error).write(scratch)


if __name__ == "__main__":
    main()
