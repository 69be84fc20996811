"""The Exit of a job whose ranks are on several nodes, from what their agents report."""

from __future__ import annotations

import base64
import errno
from collections.abc import Mapping, Sequence

from launch.base import Exit, Job, State
from launch.outcome import Outcome
from launch.wire import Message

FULL = (f"[Errno {errno.ENOSPC}]", f"[Errno {errno.EDQUOT}]", "No space left on device", "Disk quota exceeded")


class Gathered(Outcome):
    """What is known so far of one job; each of its nodes says when it is over there."""

    def __init__(self, job: Job, shares: Mapping[str, Sequence[int]]) -> None:
        """`shares`: the ranks of each node, by its name."""
        node_of = {rank: name for name, ranks in shares.items() for rank in ranks}
        super().__init__(job, tuple(node_of[rank] for rank in range(job.world_size)))
        self.shares = shares
        self.open = set(shares)  # nodes that may still have something to say
        self.sent = False  # its nodes have been told to start it
        self.failing = False  # a rank has ended badly by itself, or was late
        self._parts: list[Message] = []
        self._lost: dict[str, str] = {}  # by node

    def hear_from(self, node: str, report: Message, offset: float) -> bool:
        """Takes a report of `node`, whose clock is `offset` ahead of ours; True once the job is over everywhere."""
        match report["said"]:
            case "file":
                self._keep(report)
                return False
            case "ended":
                if "clock" in report:  # so that ends on different nodes can be put into an order
                    report["since"] = report["clock"] - offset - self.started
                ended_badly = report["code"] != 0 and not report["killed"]
                if ended_badly and any(other["late"] for other in self._ended.values()):
                    report["killed"] = True  # its peers on another node were ended before
                self.failing |= (ended_badly and not report["after"]) or report["late"]
            case "over":
                self.open.discard(node)
                self.failing |= bool(report.get("unstarted"))
                self._parts.append(report | {"notes": [f"{node}: {note}" for note in report["notes"]]})
                if self.open:
                    return False
                report = self._whole()
        return super().hear(report)

    def lose(self, node: str, why: str) -> bool:
        """Nothing more is heard from `node`; True if the job is over with it."""
        self._lost[node] = why
        self.open.discard(node)
        if not self.open:
            super().hear(self._whole())
        return not self.open

    def result(self, **words: str) -> Exit:
        """As `exit`, and a node that is lost, or whose disk is full, says nothing about the job."""
        lost = "\n".join(f"node {node} was lost: {why}" for node, why in self._lost.items())
        exit = super().exit(lost=words.get("lost") or lost, cancelled=words.get("cancelled", ""))
        if exit.state is State.FAILED and any(word in exit.error for word in FULL):
            host = exit.hosts[exit.first_failed] if exit.first_failed is not None else ", ".join(self.shares)
            return super().exit(lost=f"a disk of {host} is full: {exit.error}")
        return exit

    def _whole(self) -> Message:
        return {
            "said": "over",
            "seconds": max((part["seconds"] for part in self._parts), default=0.0),
            "error": "\n".join(part["error"] for part in self._parts if part["error"]),
            "unstarted": any(part.get("unstarted") for part in self._parts),
            "notes": [note for part in self._parts for note in part["notes"]],
            "counters": [each for part in self._parts for each in part.get("counters", ())],
        }

    def _keep(self, report: Message) -> None:
        """A piece of a file that a node could not write here itself."""
        path = self.job.folder / report["name"]
        if not path.resolve().is_relative_to(self.job.folder.resolve()):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb" if report["first"] else "ab") as file:
            file.write(base64.b64decode(report["data"]))
