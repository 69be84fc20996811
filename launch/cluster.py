"""Runs jobs on several nodes at a time; where agents come from is the business of the launchers that derive from it."""

from __future__ import annotations

import inspect
import select
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

from launch.base import Exit, Job, LaunchError
from launch.channel import SECRET, Listener
from launch.client import python_path
from launch.cluster_run import ClusterRun
from launch.nodes import Node
from launch.wire import Message

READY = 180.0  # seconds in which agents have to join: the preload modules may take long
PATIENCE = 3.0  # seconds that agents have to end their ranks and themselves


class ClusterLauncher(ABC):
    """Jobs side by side on the nodes that agents have joined from. To be used from one thread."""

    def __init__(self, *, slots: int | None, most: int | None, preload: Sequence[str]) -> None:
        """`slots`: ranks on one node at a time; by default its devices, or its CPUs. `most`: of one job on one node."""
        self._slots, self._most, self._preload = slots, most, tuple(preload)
        self._listener = Listener()
        self._nodes: dict[str, Node] = {}
        self._lost: dict[str, int] = {}  # times
        self._coming: dict[str, float] = {}  # nodes whose agent is being replaced, and until when that may take
        self._notes: list[str] = []
        self._exits: Callable[[], Generator[Exit] | None] = lambda: None

    # What a kind of cluster has to say.

    @abstractmethod
    def _start_agents(self) -> Collection[str]:
        """Places an agent on every node; returns the names of the nodes. Raises LaunchError."""

    @abstractmethod
    def _replace_agent(self, name: str) -> bool:
        """Tries again on one node; False if that makes no sense."""

    @abstractmethod
    def _how_it_ended(self, name: str) -> str:
        """What is known about an agent that does not answer; '' while it may still join."""

    @abstractmethod
    def _end_agent(self, name: str) -> None:
        """Whatever it takes, now."""

    def _why_stopped(self) -> str:
        """In a few words, when a run is stopped from outside."""
        return "the run was stopped"

    @abstractmethod
    def _stop(self) -> None:
        """Gives back what agents were placed with. May be called twice."""

    # What is the same for all.

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those that have joined; starts the agents if need be. Raises LaunchError."""
        self._ready()
        return tuple(sorted(self._nodes))

    @property
    def slots(self) -> dict[str, int]:
        """Of each node: ranks at a time."""
        return {name: self._nodes[name].slots for name in self.nodes}

    @property
    def devices(self) -> int:
        """That the nodes have together, as far as they were told which are theirs."""
        self._ready()
        return sum(len(node.devices) for node in self._nodes.values())

    def use_devices(self, count: int) -> None:
        """Each node that was not told which devices are its own has so many, and as many slots."""
        for node in self._nodes.values():
            if not node.devices:
                node.devices = [str(index) for index in range(count)][: self._slots]
                node.slots = len(node.devices)
                node.free = list(range(node.slots))

    @property
    def notes(self) -> tuple[str, ...]:
        """Nodes that were asked for and did not join."""
        return tuple(self._notes)

    def close(self) -> None:
        """Ends every rank and every agent, within some seconds. May be called twice."""
        if (exits := self._exits()) is not None:
            exits.close()
        for node in self._nodes.values():
            node.wire.send({"do": "close"})
        until = time.monotonic() + PATIENCE
        while any(node.wire.open for node in self._nodes.values()) and time.monotonic() < until:
            self._wait(until - time.monotonic())
            for node in self._nodes.values():
                node.wire.receive()
        for name, node in self._nodes.items():
            self._end_agent(name)
            node.wire.close()
        self._nodes.clear()
        self._stop()
        self._listener.close()

    def run(self, jobs: Iterable[Job], on_start: Callable[[Job], None] = lambda job: None) -> Iterator[Exit]:
        """As :meth:`launch.local.LocalLauncher.run`. A job that loses a node is LOST; others go on elsewhere."""
        given = list(jobs)
        for what, values in (("name", [job.name for job in given]), ("folder", [str(job.folder) for job in given])):
            if twice := sorted({value for value in values if values.count(value) > 1}):
                raise ValueError(f"several jobs have the same {what}: {', '.join(twice)}")
        if (exits := self._exits()) is not None and inspect.getgeneratorstate(exits) != inspect.GEN_CLOSED:
            raise ValueError("this launcher is running jobs already: finish or close that run first")
        exits = ClusterRun(self, given, on_start).exits()
        self._exits = weakref.ref(exits)  # weak, so that a loop that is left early closes it
        return exits

    def _command(self, name: str, python: str) -> list[str]:
        """What starts the agent of a node, there."""
        preload = [f"--preload={module}" for module in self._preload]
        where = self._listener.where
        return [python, "-P", "-m", "launch.outpost", f"--launcher={where}", f"--name={name}", *preload]

    def _environment(self) -> dict[str, str]:
        """That it needs."""
        return {SECRET: self._listener.secret, "PYTHONPATH": python_path()}

    def _ready(self) -> None:
        """Waits until all agents have joined, or those that have can go without the others."""
        if self._nodes:
            return
        expected, until = set(self._start_agents()), time.monotonic() + READY
        gone: dict[str, str] = {}
        while (missing := expected - gone.keys() - {n.name for n in self._nodes.values() if n.ready}) and (
            time.monotonic() < until
        ):
            self._wait(0.5)
            self._join()
            for name, node in list(self._nodes.items()):
                for report in node.receive():
                    if report["said"] == "broken":
                        raise LaunchError(f"cannot preload on {name}:\n{report['error']}")
                    self._hear_ready(node, report)
            gone |= {name: how for name in missing if (how := self._how_it_ended(name))}
        gone |= dict.fromkeys(missing, f"it did not join within {READY:g} s")
        for name in gone:
            self._forget(name)
        self._notes = [f"node {name} does not take part: {how}" for name, how in sorted(gone.items())]
        if not self._nodes:
            raise LaunchError("no agent has joined:\n" + "\n".join(self._notes))

    def _join(self) -> None:
        for name, wire in self._listener.joined():
            known = self._nodes.get(name)
            if known is not None and known.ready:
                wire.close()
                continue
            if known is not None:  # an agent that heard nothing for long, and is trying again
                known.wire.close()
            self._nodes[name] = Node(name=name, wire=wire)

    def _hear_ready(self, node: Node, report: Message) -> None:
        if report["said"] != "ready":
            return
        node.address, node.devices = report["address"], report["devices"][: self._slots]
        node.slots = len(node.devices) or self._slots or report["slots"]
        node.free, node.ready = list(range(node.slots)), True
        node.ping()

    def _expect(self) -> None:
        """Gives up on agents that were to come again and do not."""
        for name, until in list(self._coming.items()):
            node = self._nodes.get(name)
            how = self._how_it_ended(name) or ("it did not join again" if time.monotonic() > until else "")
            if node is not None and node.ready:
                del self._coming[name]
            elif how:
                del self._coming[name]
                self._forget(name)
                self._notes.append(f"node {name} was lost: {how}")

    def _forget(self, name: str) -> None:
        if (node := self._nodes.pop(name, None)) is not None:
            node.wire.close()
        self._end_agent(name)

    def _wait(self, timeout: float) -> None:
        """Until there is something to hear or room to send, or some seconds are over."""
        poll = select.poll()
        for fd in self._listener.wires:
            poll.register(fd, select.POLLIN)
        for node in self._nodes.values():
            if node.wire.open:
                node.wire.flush()
                poll.register(node.wire.reading, select.POLLIN)
                if node.wire.pending:
                    poll.register(node.wire.writing, select.POLLOUT)
        poll.poll(max(0.0, timeout * 1000))
