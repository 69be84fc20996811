"""The nodes of a launcher: which agent is where, and which of its slots are free."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from launch.wire import Message, Wire

HOST = "LAUNCH_HOST"  # in the environment of ranks: the node's name, as its launcher knows it
VISIBLE = "CUDA_VISIBLE_DEVICES"  # set by schedulers that hand out devices
PING = 5.0  # seconds between two questions whether an agent still answers
SILENCE = 60.0  # seconds without any answer after which it is taken for lost


def stamp(folder: Path) -> str:
    """Tells whether two machines mean the same folder: what the launcher has just written is there, or it is not."""
    with suppress(OSError):
        return hashlib.sha256((folder / "job.json").read_bytes()).hexdigest()
    return ""


@dataclass(slots=True, kw_only=True)
class Node:
    """One agent, once it has joined. Times are on the launcher's monotonic clock."""

    name: str
    wire: Wire
    address: str = ""  # by which other nodes reach it
    slots: int = 0  # room for so many ranks
    devices: Sequence[str] = ()  # one for each slot, where it has any
    free: list[int] = field(default_factory=list)
    ready: bool = False
    offset: float = 0.0  # how far its clock is ahead of ours
    _unanswered: float = math.inf  # since when
    _asked: float = 0.0
    _trip: float = math.inf  # the shortest way there and back so far

    def receive(self) -> list[Message]:
        """What it has to say by now; keeps the connection and the clock to itself."""
        messages, now = self.wire.receive(), time.monotonic()
        if messages:
            self._unanswered = math.inf
        for pong in (message for message in messages if message["said"] == "pong"):
            if now - pong["at"] < self._trip:
                self._trip = now - pong["at"]
                self.offset = pong["now"] - (pong["at"] + now) / 2
        if self.ready and now > self._asked + PING:
            self.ping()
        return [message for message in messages if message["said"] != "pong"]

    def ping(self) -> None:
        self._asked = time.monotonic()
        self._unanswered = min(self._unanswered, self._asked)
        self.wire.send({"do": "ping", "at": self._asked})

    @property
    def silent(self) -> bool:
        """It has not answered for long; to be asked after `receive`."""
        return time.monotonic() > self._unanswered + SILENCE


Placing = dict[str, list[int]]
"""Slots that a job takes, by the name of the node, in the order of its ranks."""


def holds(need: int, nodes: Collection[Node], *, cold: bool) -> bool:
    """Whether these nodes can ever run so many ranks together: CPUs may be shared, devices may not."""
    slots = [node.slots for node in nodes]
    enough = (max(slots) if cold else sum(slots)) >= need if slots else False
    return enough or (bool(nodes) and not any(node.devices for node in nodes))


def place(need: int, nodes: Collection[Node], *, most: int | None, cold: bool) -> Placing | None:
    """Where `need` ranks go now; None if it is better to wait.

    On as few nodes as hold them with at most `most` on each, evenly. The limit gives way where the nodes are too few,
    and for `cold` jobs, which are on one node. If there are too few slots for a job at all, it runs alone and its ranks
    share them.
    """
    limit = {node.name: min(node.slots, most or node.slots) for node in nodes}
    if cold or sum(limit.values()) < need:
        limit = {node.name: node.slots for node in nodes}
    room = {node.name: min(len(node.free), limit[node.name]) for node in nodes}
    for count in range(1, 2 if cold else len(nodes) + 1):
        best = sorted(nodes, key=lambda node: (-room[node.name], node.name))[:count]
        if sum(room[node.name] for node in best) >= need:
            return _deal(need, sorted(best, key=lambda node: node.name), room)
    enough = (max if cold else sum)([*limit.values(), 0]) >= need
    if enough or not holds(need, nodes, cold=cold) or any(len(node.free) < node.slots for node in nodes):
        return None
    chosen = sorted(nodes, key=lambda node: node.name)[: 1 if cold else need]
    shares = [need // len(chosen) + (index < need % len(chosen)) for index in range(len(chosen))]
    return {node.name: [slot % node.slots for slot in range(share)] for node, share in zip(chosen, shares, strict=True)}


def _deal(need: int, nodes: Sequence[Node], room: Mapping[str, int]) -> Placing:
    """As evenly as the room on each allows."""
    placing: Placing = {}
    for index, node in enumerate(nodes):
        rest = sum(room[other.name] for other in nodes[index + 1 :])
        even = math.ceil(need / (len(nodes) - index))
        share = min(room[node.name], max(even, need - rest))
        placing[node.name] = node.free[:share]
        need -= share
    return {name: slots for name, slots in placing.items() if slots}
