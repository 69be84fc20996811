"""Runs jobs on this machine."""

from __future__ import annotations

import inspect
import os
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

from launch.base import AgentKilled, Exit, Job, State
from launch.client import LocalAgent
from launch.outcome import Outcome
from launch.waiting import Waiting

RESTARTS = 3  # agents that may be started in place of dead ones, per run
PATIENCE = 1.5  # seconds that an agent has to end its ranks and itself
MARGIN = 15.0  # seconds after a job's deadline in which the agent must have ended it, or is taken for dead


NODES = "LAUNCH_NODES"


class LocalLauncher:
    """Jobs side by side on this machine, as far as slots allow.

    To be used from one thread. No new job starts while the caller is busy between two exits; deadlines are kept.
    """

    def __init__(
        self,
        *,
        slots: int | None = None,
        preload: Sequence[str] = (),
        devices: str = "",
        nodes: Callable[[Job], Sequence[str]] | None = None,
    ) -> None:
        """`slots`: how many ranks may run at a time; by default one per CPU that this process may use.

        `preload`: modules that are imported once, before ranks are forked. `devices`: a variable that limits which
        devices a process sees (CUDA_VISIBLE_DEVICES); each slot is then one device, and jobs that run side by side see
        different ones. `nodes`: names to be used as if the ranks of a job were on several hosts, one for each rank;
        ranks find them in LAUNCH_NODES.
        """
        self._nodes = nodes
        self._slots = len(os.sched_getaffinity(0)) if slots is None else slots
        if self._slots < 1:
            raise ValueError(f"slots ({slots}) must be at least 1")
        self._preload = tuple(preload)
        self._variable = devices
        self._devices = _seen(devices, self._slots) if devices else []
        self._agent: LocalAgent | None = None
        self._exits: Callable[[], Generator[Exit] | None] = lambda: None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends every rank and the agent, within two seconds. May be called twice."""
        if (exits := self._exits()) is not None:
            exits.close()
        if self._agent is not None:
            self._agent.close(PATIENCE)
            self._agent = None

    def run(self, jobs: Iterable[Job], on_start: Callable[[Job], None] = lambda job: None) -> Iterator[Exit]:
        """The exits, in order of completion. `on_start` is called when the ranks of a job have been asked for.

        Raises ValueError for jobs that cannot run together; LaunchError, when iterated, if no rank can be started at
        all. Closing the iterator early, or an exception out of it, ends all ranks; unfinished jobs are CANCELLED.
        """
        given = list(jobs)
        for what, values in (("name", [job.name for job in given]), ("folder", [str(job.folder) for job in given])):
            if twice := sorted({value for value in values if values.count(value) > 1}):
                raise ValueError(f"several jobs have the same {what}: {', '.join(twice)}")
        if (exits := self._exits()) is not None and inspect.getgeneratorstate(exits) != inspect.GEN_CLOSED:
            raise ValueError("this launcher is running jobs already: finish or close that run first")
        exits = _Run(self, given, on_start).exits()
        self._exits = weakref.ref(exits)  # weak, so that a loop that is left early closes it
        return exits


class _Run:
    """One call of `run`."""

    def __init__(self, launcher: LocalLauncher, jobs: Sequence[Job], on_start: Callable[[Job], None]) -> None:
        self._launcher, self._on_start = launcher, on_start
        self._waiting = Waiting(jobs, launcher._slots)
        self._running: dict[str, Outcome] = {}  # by name of the job
        self._taken: dict[str, list[int]] = {}  # slots
        self._free = list(range(launcher._slots))
        self._restarts = 0

    def exits(self) -> Generator[Exit]:
        try:
            while self._waiting or self._running:
                if self._restarts > RESTARTS:
                    yield from self._give_up()
                    return
                try:
                    agent = self._living_agent()
                except AgentKilled:
                    self._restarts += 1
                    continue
                self._start_what_fits(agent)
                if exits := self._listen(agent):
                    self._start_what_fits(agent)  # before the caller takes its time
                yield from exits
        finally:
            if self._waiting or self._running:
                self._abandon()

    def _living_agent(self) -> LocalAgent:
        launcher = self._launcher
        if launcher._agent is not None and not launcher._agent.lives and not self._running:
            launcher._agent.close(PATIENCE)
            launcher._agent = None
        if launcher._agent is None:
            launcher._agent = LocalAgent(launcher._preload)
            launcher._agent.ready()
        return launcher._agent

    def _start_what_fits(self, agent: LocalAgent) -> None:
        while agent.lives and (job := self._waiting.take(len(self._free))) is not None:
            need = self._waiting.needs(job)
            taken, self._free = self._free[:need], self._free[need:]
            self._taken[job.name] = taken
            job.write()
            nodes = tuple(self._launcher._nodes(job)) if self._launcher._nodes else ()
            self._running[job.name] = Outcome(job, nodes or (agent.host,) * job.world_size)
            agent.wire.send(
                {
                    "do": "start",
                    "job": job.name,
                    "folder": str(job.folder.absolute()),
                    "ranks": list(range(job.world_size)),
                    "world_size": job.world_size,
                    "entry": job.entry,
                    "payload": dict(job.payload),
                    "argv": job.argv,
                    "env": self._devices_of(taken) | ({NODES: ",".join(nodes)} if nodes else {}) | dict(job.env),
                    "deadline": job.deadline,
                    "stall": job.stall,
                    "pulse": job.pulse,
                    "cold": job.cold,
                }
            )
            self._on_start(job)

    def _devices_of(self, slots: list[int]) -> dict[str, str]:
        launcher = self._launcher
        return {launcher._variable: ",".join(launcher._devices[slot] for slot in slots)} if launcher._variable else {}

    def _listen(self, agent: LocalAgent) -> list[Exit]:
        """Waits for news, a second at most; returns the exits of jobs that are over by it."""
        agent.wire.flush()
        agent.wire.wait(1.0)
        exits = []
        reports = agent.receive()
        for report in reports:
            # None: an agent may have more to say of a job that is over.
            if (outcome := self._running.get(report["job"])) is not None and outcome.hear(report):
                exits.append(self._finish(outcome, outcome.exit(notes=agent.notes)))
        now = time.monotonic()
        late = any(now > outcome.started + outcome.job.deadline + MARGIN for outcome in self._running.values())
        if self._running and (not agent.lives or (late and not reports)):
            exits += self._lose(agent)
        return exits

    def _finish(self, outcome: Outcome, exit: Exit) -> Exit:
        job = outcome.job
        try:
            exit.write(job.folder)
        except OSError as error:  # what had happened is not to be lost with it
            said = f"; {job.name}: {exit.error.partition(chr(10))[0]}" if exit.error else ""
            raise OSError(error.errno, f"{error.strerror}{said}", str(job.folder / "exit.json")) from error
        del self._running[job.name]
        self._free = sorted(self._free + self._taken.pop(job.name))
        return exit

    def _lose(self, agent: LocalAgent) -> list[Exit]:
        """The agent is dead, or as good as that."""
        message = f"the agent (process {agent.pid}) that ran this job was lost: {agent.how_it_ended()}"
        agent.kill()
        self._launcher._agent = None
        self._restarts += 1
        return [self._finish(outcome, outcome.exit(lost=message)) for outcome in list(self._running.values())]

    def _give_up(self) -> Iterator[Exit]:
        for job in self._waiting.drop():
            yield self._never_started(job, State.LOST, f"not started: {self._restarts} agents were lost before it")

    def _abandon(self) -> None:
        message = "ended because the run was stopped"
        agent, self._launcher._agent = self._launcher._agent, None
        for report in agent.close(PATIENCE) if agent is not None else []:
            if (outcome := self._running.get(report.get("job", ""))) is not None:
                outcome.hear(report)
        for outcome in list(self._running.values()):
            self._finish(outcome, outcome.exit(cancelled=message))
        for job in self._waiting.drop():
            self._never_started(job, State.CANCELLED, "not started: the run was stopped before")

    def _never_started(self, job: Job, state: State, error: str) -> Exit:
        job.write()
        exit = Exit(job=job.name, state=state, ranks=(), first_failed=None, error=error, hosts=(), seconds=0.0)
        exit.write(job.folder)
        return exit


def _seen(variable: str, slots: int) -> list[str]:
    """The devices that this process may see, one per slot."""
    seen = [name for name in os.environ.get(variable, "").split(",") if name] or [str(slot) for slot in range(slots)]
    if len(seen) < slots:
        raise ValueError(f"slots ({slots}) must not exceed the devices that {variable} allows ({len(seen)})")
    return seen
