"""Places jobs on the nodes of a cluster, starts them there, and watches them to their end."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from launch.base import Exit, Job, State
from launch.gathered import Gathered
from launch.nodes import HOST, VISIBLE, Node, Placing, holds, place, stamp
from launch.waiting import Waiting

if TYPE_CHECKING:
    from launch.cluster import ClusterLauncher

REPLACED = 1  # times that a lost agent is replaced on its node
COMING = 180.0  # seconds until it has joined again
GRACE = 0.3  # seconds that ranks have on other nodes, once one has failed
PATIENCE = 3.0  # seconds that agents have to end the ranks of a run that is stopped
MARGIN = 20.0  # seconds after a job's deadline in which an agent must have ended it, or is taken for lost
NOT_SENT = {"name", "folder", "payload", "env", "nodes", "avoid"}


class ClusterRun:
    """One call of :meth:`ClusterLauncher.run`."""

    def __init__(self, launcher: ClusterLauncher, jobs: Sequence[Job], on_start: Callable[[Job], None]) -> None:
        self._launcher, self._on_start = launcher, on_start
        self._waiting = Waiting(jobs, sum(job.world_size for job in jobs))
        self._running: dict[str, Gathered] = {}
        self._placed: dict[str, Placing] = {}

    def exits(self) -> Generator[Exit]:
        launcher = self._launcher
        try:
            launcher._ready()
            while self._waiting or self._running:
                yield from self._start_what_fits()
                launcher._wait(0.5)
                launcher._join()
                launcher._expect()
                exits = self._listen()
                for node in list(launcher._nodes.values()):
                    if not node.wire.open or node.silent or self._late(node):
                        exits += self._lose(node)
                exits += self._start_what_fits()  # before the caller takes its time
                yield from exits
        finally:
            if self._waiting or self._running:
                self._abandon()

    # Starting.

    def _allowed(self, job: Job) -> list[Node]:
        nodes = [node for node in self._launcher._nodes.values() if node.ready]
        nodes = [node for node in nodes if not job.nodes or node.name in job.nodes]
        others = [node for node in nodes if node.name not in job.avoid]
        return others if sum(node.slots for node in others) >= job.world_size else nodes

    def _start_what_fits(self) -> list[Exit]:
        """Starts them; the exits are those of jobs that cannot be started any more."""
        exits = []
        never: list[tuple[Job, str]] = []

        def fits(job: Job) -> bool:
            allowed = self._allowed(job)
            if not self._launcher._coming and not holds(job.world_size, allowed, cold=job.cold):
                never.append((job, self._too_few(job, allowed)))
                return True
            return place(job.world_size, allowed, most=self._launcher._most, cold=job.cold) is not None

        while (job := self._waiting.take_if(fits)) is not None:
            if never and never[-1][0] is job:
                exits.append(self._never_started(job, State.LOST, never[-1][1]))
            else:
                self._start(job)
        return exits

    def _too_few(self, job: Job, allowed: Sequence[Node]) -> str:
        wanted = f" of {', '.join(job.nodes)}" if job.nodes else ""
        there = f"{sum(node.slots for node in allowed)} on {len(allowed)} nodes are left{wanted}"
        words = [f"not started: it needs {job.world_size} slots{' on one node' * job.cold}, {there}"]
        return "; ".join([*words, *self._launcher._notes])

    def _start(self, job: Job) -> None:
        placing = place(job.world_size, self._allowed(job), most=self._launcher._most, cold=job.cold)
        assert placing is not None
        shares: dict[str, list[int]] = {}
        for name, slots in placing.items():
            node = self._launcher._nodes[name]
            node.free = [slot for slot in node.free if slot not in slots]
            first = sum(map(len, shares.values()))
            shares[name] = list(range(first, first + len(slots)))
        job.write()
        self._placed[job.name] = placing
        self._running[job.name] = Gathered(job, shares)
        if len(shares) > 1:
            self._launcher._nodes[next(iter(shares))].wire.send({"do": "port", "job": job.name})
        else:
            self._send(job, {})
        self._on_start(job)

    def _send(self, job: Job, meeting: Mapping[str, Any]) -> None:
        """`meeting`: where ranks on several nodes find each other."""
        self._running[job.name].sent = True
        rest = {each.name: getattr(job, each.name) for each in fields(job) if each.name not in NOT_SENT}
        for index, (name, ranks) in enumerate(self._running[job.name].shares.items()):
            node = self._launcher._nodes[name]
            own = {HOST: name}
            if node.devices:
                own[VISIBLE] = ",".join(node.devices[slot] for slot in self._placed[job.name][name])
            node.wire.send(
                {
                    "do": "start",
                    "job": job.name,
                    "folder": str(job.folder.absolute()),
                    "stamp": stamp(job.folder),
                    "payload": dict(job.payload),
                    "env": own | dict(job.env),
                    **rest,
                    "ranks": ranks,
                    "group_rank": index,
                    **meeting,
                }
            )

    # Watching.

    def _listen(self) -> list[Exit]:
        launcher, exits = self._launcher, []
        for node in list(launcher._nodes.values()):
            for report in node.receive():
                if report["said"] in ("ready", "broken"):
                    launcher._hear_ready(node, report)
                elif (outcome := self._running.get(report["job"])) is None or node.name not in outcome.shares:
                    continue
                elif report["said"] == "port":
                    self._meet(outcome.job, node, report["port"])
                elif outcome.hear_from(node.name, report, node.offset):
                    exits.append(self._finish(outcome))
                elif report["said"] == "ended" and outcome.failing:
                    self._cancel(outcome, GRACE, but=node.name)
        return exits

    def _meet(self, job: Job, node: Node, port: int) -> None:
        address = {"master_addr": node.address, "master_port": port}
        self._send(job, address | {"init_method": f"tcp://{node.address}:{port}"})

    def _cancel(self, outcome: Gathered, grace: float, but: str = "") -> None:
        for name in outcome.open - {but}:
            if (node := self._launcher._nodes.get(name)) is not None:
                node.wire.send({"do": "cancel", "job": outcome.job.name, "grace": grace})

    def _late(self, node: Node) -> bool:
        now = time.monotonic()
        mine = (outcome for outcome in self._running.values() if node.name in outcome.open)
        return any(now > outcome.started + outcome.job.deadline + MARGIN for outcome in mine)

    def _lose(self, node: Node) -> list[Exit]:
        """Its agent is gone, or as good as that; what it ran is lost, and its ranks elsewhere are ended."""
        launcher, exits = self._launcher, []
        how = launcher._how_it_ended(node.name) or "its agent does not answer"
        launcher._forget(node.name)
        for outcome in [outcome for outcome in self._running.values() if node.name in outcome.open]:
            if not outcome.sent:
                outcome.open = {node.name}  # the others have not heard of it
            if outcome.lose(node.name, how):
                exits.append(self._finish(outcome))
            else:
                self._cancel(outcome, 0.0)
        launcher._lost[node.name] = launcher._lost.get(node.name, 0) + 1
        if launcher._lost[node.name] <= REPLACED and launcher._replace_agent(node.name):
            launcher._coming[node.name] = time.monotonic() + COMING
        else:
            launcher._notes.append(f"node {node.name} was lost: {how}")
        return exits

    def _finish(self, outcome: Gathered, **words: str) -> Exit:
        job = outcome.job
        exit = outcome.result(**words)
        exit.write(job.folder)
        del self._running[job.name]
        for name, slots in self._placed.pop(job.name).items():
            if (node := self._launcher._nodes.get(name)) is not None:
                node.free = sorted({*node.free, *slots})
        return exit

    def _abandon(self) -> None:
        """The agents stay: a launcher may run again."""
        why = self._launcher._why_stopped()
        for outcome in list(self._running.values()):
            if outcome.sent:
                self._cancel(outcome, 0.0)
            else:
                self._finish(outcome, cancelled=f"ended because {why}")
        until = time.monotonic() + PATIENCE
        while self._running and time.monotonic() < until:
            self._launcher._wait(until - time.monotonic())
            for node in list(self._launcher._nodes.values()):
                for report in node.receive():
                    known = self._running.get(report.get("job", ""))
                    if known is None or report["said"] == "port":
                        continue
                    if known.hear_from(node.name, report, node.offset):
                        self._finish(known, cancelled=f"ended because {why}")
        for outcome in list(self._running.values()):
            self._finish(outcome, cancelled=f"ended because {why}")
        for job in self._waiting.drop():
            self._never_started(job, State.CANCELLED, f"not started: before that, {why}")

    def _never_started(self, job: Job, state: State, error: str) -> Exit:
        job.write()
        exit = Exit(job=job.name, state=state, ranks=(), first_failed=None, error=error, hosts=(), seconds=0.0)
        exit.write(job.folder)
        return exit
