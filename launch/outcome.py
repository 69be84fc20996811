"""From what agents report about the ranks of a job to its Exit."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable

from launch.base import Exit, Job, RankExit, State
from launch.logs import log_of
from launch.process import name_of
from launch.wire import Message

PEER_GONE = re.compile(r"Connection (reset|closed) by peer|Broken pipe|remote process exited", re.IGNORECASE)


class Outcome:
    """What is known so far of one job that was started."""

    def __init__(self, job: Job, hosts: tuple[str, ...]) -> None:
        self.job = job
        self._pids: dict[int, int] = {}  # by rank, as they were started
        self.started = time.monotonic()
        self._hosts = hosts
        self._ended: dict[int, Message] = {}  # by rank
        self._over: Message | None = None

    def hear(self, report: Message) -> bool:
        """Takes a report about this job; True once it is over."""
        match report["said"]:
            case "started":
                self._pids[report["rank"]] = report["pid"]
            case "ended":
                self._ended[report["rank"]] = report
            case "over":
                self._over = report
            case other:
                raise AssertionError(f"unknown report {other!r}")
        return self._over is not None

    def exit(self, *, lost: str = "", cancelled: str = "", notes: tuple[str, ...] = ()) -> Exit:
        """`lost` says why nothing more is going to be heard; `cancelled`, why ranks were ended that did not fail."""
        ranks = tuple(self._rank(rank) for rank in range(self.job.world_size))
        failed = sorted(
            (rank.rank for rank in ranks if rank.failed),
            key=lambda rank: (
                self._ended[rank]["after"],
                _misses_a_peer(self._ended[rank]),
                self._ended[rank]["since"],
                rank,
            ),
        )
        after = [rank for rank in failed if self._ended[rank]["after"]]
        over = self._over or {"seconds": time.monotonic() - self.started, "error": "", "notes": []}
        lost = lost or (over["error"] if over.get("unstarted") else "")
        if lost:
            state, error = State.LOST, lost
        elif failed != after:
            state, error = State.FAILED, self._failure(ranks, failed)
        elif any(report["late"] for report in self._ended.values()):
            state, error = State.TIMED_OUT, self._lateness(ranks)
        elif failed:
            state, error = State.FAILED, self._failure(ranks, failed)
        elif all(rank.code == 0 for rank in ranks):
            state, error = State.DONE, ""
        elif cancelled:
            state, error = State.CANCELLED, cancelled
        else:
            state, error = State.FAILED, over["error"] or "the ranks ended, and it is not known how"
        return Exit(
            job=self.job.name,
            state=state,
            ranks=ranks,
            first_failed=failed[0] if failed else None,
            error=error,
            hosts=self._hosts,
            seconds=over["seconds"],
            notes=(*notes, *over["notes"]),
            counters=tuple(over.get("counters", ())),
        )

    def _rank(self, rank: int) -> RankExit:
        report = self._ended.get(rank, {})
        return RankExit(
            rank=rank,
            host=self._hosts[rank],
            pid=report.get("pid") or self._pids.get(rank, 0),
            code=report.get("code"),
            signal=report.get("signal"),
            error=report.get("error", ""),
            log=log_of(self.job.folder, rank),
            ended=report.get("ended", time.monotonic() - self.started),
            killed=report.get("killed", False),
            where=report.get("where", ""),
        )

    def _failure(self, ranks: tuple[RankExit, ...], failed: list[int]) -> str:
        first, *later = failed
        report, rank = self._ended[first], ranks[first]
        how = report["summary"] or (f"killed by {name_of(rank.signal)}" if rank.signal else f"exit code {rank.code}")
        what = "failed after its work was done" if report["after"] else "failed first"
        lines = [f"rank {first} of {len(ranks)} {what}, {report['since']:.2f} s after the start: {how}"]
        if rank.error.strip() != report["summary"]:
            lines.append(rank.error.rstrip())
        elif report["tail"]:
            lines += ["its log ends with:", report["tail"]]
        if later:
            lines.append(f"failed after that: {_name(later)}")
        if killed := [other.rank for other in ranks if other.killed]:
            lines.append(f"killed because of that: {_name(killed)}")
        return "\n".join(lines)

    def _lateness(self, ranks: tuple[RankExit, ...]) -> str:
        late = {rank: report["where"] for rank, report in sorted(self._ended.items()) if report["late"]}
        if any(report.get("stalled") for report in self._ended.values()):
            how = f"had shown no sign of life for {self.job.stall:g} s"
        else:
            how = f"had not ended after {self.job.deadline:g} s, their deadline"
        lines = [f"{len(late)} of {len(ranks)} ranks {how}: {_name(late)}"]
        lines += [f"rank {rank} was in {where}" for rank, where in late.items() if where]
        return "\n".join(lines)


def _misses_a_peer(report: Message) -> bool:
    """A rank that says this was not the first to fail, if another did not say it: a process that aborts takes a while,
    and its connections may be gone before it is."""
    return bool(PEER_GONE.search(report["summary"]))


def _name(ranks: Iterable[int]) -> str:
    """'ranks 0 to 3, 7': consecutive ones shortened, as there may be hundreds."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    told = [
        f"{low}" if low == high else f"{low}, {high}" if high == low + 1 else f"{low} to {high}" for low, high in runs
    ]
    single = len(runs) == 1 and runs[0][0] == runs[0][1]
    return f"rank{'' if single else 's'} {', '.join(told)}"
