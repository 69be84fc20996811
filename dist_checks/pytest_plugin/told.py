"""What the ranks of one test have told, made into one report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from dist_checks.pytest_plugin.hung import hung
from dist_checks.pytest_plugin.names import REPORT, STRICT
from dist_checks.report.words import ranks as named
from launch.base import Exit, Job, RankExit, State
from launch.outcome import PEER_GONE

MOST = 1 << 16
"""Bytes of what a rank has printed that are shown."""
MOST_LINE = 200
PRINTED = "Captured stdout and stderr of rank {}"
Outcome = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTold:
    """One rank's own session."""

    rank: int
    exit: RankExit | None
    report: pytest.TestReport | None
    """The first that did not pass, else that of the call; None where it left none."""
    printed: str
    skipped: str
    """Why there was nothing to run."""
    warnings: Sequence[Mapping[str, Any]]

    @property
    def kind(self) -> str:
        """``passed``, ``skipped``, ``xfailed``, ``xpassed``, ``failed``, or ``silent``."""
        if self.skipped:
            return "skipped"
        if self.report is None:
            return "silent"
        if hasattr(self.report, "wasxfail"):
            return "xfailed" if self.report.skipped else "xpassed"
        return "xpassed" if is_strict(self.report) else str(self.report.outcome)


def is_strict(report: pytest.TestReport) -> bool:
    """It passed where it was to fail."""
    return report.failed and isinstance(report.longrepr, str) and report.longrepr.startswith(STRICT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """Of all ranks."""

    outcome: Outcome
    longrepr: Any = None
    wasxfail: str | None = None
    problem: str = ""
    """Instead of a report: how ranks ended that could leave none."""
    sections: Sequence[tuple[str, str]] = ()
    properties: Sequence[tuple[str, object]] = ()
    warnings: Sequence[Mapping[str, Any]] = field(default=())


def told(config: pytest.Config, job: Job, exit: Exit) -> Told:
    exits = {rank.rank: rank for rank in exit.ranks}
    ranks = [_read(config, job.folder, rank, exits.get(rank)) for rank in range(job.world_size)]
    first = ranks[exit.first_failed] if exit.first_failed is not None else None
    common: dict[str, Any] = {
        "sections": [section for rank in _ordered(ranks, first) for section in _sections(rank, first)],
        "properties": next((rank.report.user_properties for rank in ranks if rank.report is not None), ()),
        "warnings": ranks[0].warnings,
    }
    if exit.state is State.DONE:
        return _all_ended(ranks, common)
    if exit.state is State.TIMED_OUT:
        return Told(outcome="failed", problem=_with(hung(job, exit, _passed(ranks)), exit.error), **common)
    if first is None or first.report is None or first.kind not in ("failed", "xfailed"):
        return Told(outcome="failed", problem=_death(exit, ranks, first), **common)
    report = first.report
    if first.kind == "xfailed":
        return Told(outcome="skipped", longrepr=report.longrepr, wasxfail=report.wasxfail, **common)
    where = "" if report.when == "call" else f", in {report.when}"
    head = f"rank {first.rank} of {len(ranks)} failed first{where}"
    return Told(outcome="failed", longrepr=_headed(report.longrepr, head, _others(ranks, first)), **common)


def _read(config: pytest.Config, folder: Path, rank: int, exit: RankExit | None) -> RankTold:
    data: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        data = json.loads((folder / REPORT.format(rank)).read_text(encoding="utf-8"))
    hook = config.hook
    reports: list[pytest.TestReport] = [
        hook.pytest_report_from_serializable(config=config, data=each) for each in data.get("reports", ())
    ]
    telling = [each for each in reports if not each.passed] or [each for each in reports if each.when == "call"]
    start, stop = data.get("printed", (0, None))
    printed = _between(folder / f"rank-{rank:05d}.log", start, stop)
    if exit is not None and exit.error:
        printed = printed.replace(exit.error, "")  # it is told by itself
    return RankTold(
        rank=rank,
        exit=exit,
        report=telling[0] if telling else None,
        printed=printed,
        skipped=str(data.get("skipped", "")),
        warnings=data.get("warnings", ()),
    )


def _between(log: Path, start: int, stop: int | None) -> str:
    with suppress(OSError):
        found = log.read_bytes()[start:stop]
        return (b"...\n" * (len(found) > MOST) + found[-MOST:]).decode(errors="replace")
    return ""


def _ordered(ranks: Sequence[RankTold], first: RankTold | None) -> list[RankTold]:
    return sorted(ranks, key=lambda rank: (rank is not first, rank.rank))


def _sections(rank: RankTold, first: RankTold | None) -> Iterator[tuple[str, str]]:
    aside = rank is not first and PEER_GONE.search(_how(rank))  # torch logs there what is told in a line
    for title, text in rank.report.sections if rank.report is not None and not aside else ():
        yield f"{title} of rank {rank.rank}", text
    if rank.printed.strip():
        yield PRINTED.format(rank.rank), rank.printed


def _all_ended(ranks: Sequence[RankTold], common: Mapping[str, Any]) -> Told:
    kinds = {rank.kind for rank in ranks}
    if kinds == {"skipped"}:
        report = ranks[0].report
        # pytest types longrepr widely; of a test that was skipped it is (path, line, reason).
        where = ("", 0, ranks[0].skipped) if report is None else tuple(report.longrepr)  # type: ignore[arg-type]
        return Told(outcome="skipped", longrepr=where, **common)
    if kinds - {"passed", "xpassed"}:
        lines = [f"{who}: {what}" for who, what in _grouped(ranks, _how)]
        text = "\n".join(("the ranks do not agree: a test is skipped on all of them or on none", *lines))
        return Told(outcome="failed", problem=text, **common)
    for rank in ranks:
        if rank.kind == "xpassed" and rank.report is not None:
            report = rank.report
            outcome: Outcome = "failed" if is_strict(report) else "passed"
            return Told(outcome=outcome, longrepr=report.longrepr, wasxfail=getattr(report, "wasxfail", None), **common)
    return Told(outcome="passed", **common)


def _passed(ranks: Sequence[RankTold]) -> set[int]:
    return {rank.rank for rank in ranks if rank.kind in ("passed", "xpassed", "skipped")}


def _how(rank: RankTold) -> str:
    """In a line."""
    report = rank.report
    if rank.skipped or rank.kind == "skipped":
        why = rank.skipped or (report.longrepr[2] if report and isinstance(report.longrepr, (tuple, list)) else "")
        return f"skipped ({why.removeprefix('Skipped: ')})"
    if report is not None and report.failed and not is_strict(report):
        crash = getattr(report.longrepr, "reprcrash", None)
        at = f" ({Path(crash.path).name}:{crash.lineno})" if crash is not None else ""
        message = str(crash.message if crash is not None else report.longreprtext)
        gone = PEER_GONE.search(message)  # ports and addresses say nothing
        return (gone[0] if gone else _line(message)) + at
    if report is not None:
        return rank.kind
    exit = rank.exit
    if exit is None:
        return "never started"
    if exit.killed:
        return "ended because of that"
    if exit.signal:
        return f"killed by signal {exit.signal}"
    return _line(exit.error.strip().rpartition("\n")[2]) if exit.error.strip() else f"exit code {exit.code}"


def _line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= MOST_LINE else f"{line[:MOST_LINE]}..."


def _grouped(ranks: Sequence[RankTold], words: Any) -> Iterator[tuple[str, str]]:
    groups: dict[str, list[int]] = {}
    for rank in ranks:
        groups.setdefault(words(rank), []).append(rank.rank)
    for what, who in groups.items():
        yield named(who), what


def _others(ranks: Sequence[RankTold], first: RankTold) -> str:
    return "\n".join(f"{who}: {what}" for who, what in _grouped([rank for rank in ranks if rank is not first], _how))


def _headed(longrepr: Any, head: str, others: str) -> Any:
    """The rank's own traceback, and under it which rank that is and what became of the others."""
    if hasattr(longrepr, "addsection"):
        longrepr.addsection(head, others or "there is no other rank")
        return longrepr
    return _with(str(longrepr), f"{head}\n{others}")


def _death(exit: Exit, ranks: Sequence[RankTold], first: RankTold | None) -> str:
    """Of a rank that was killed, left without a word, or could not begin."""
    said = exit.error.partition("\nits log ends with:")[0].rstrip() or str(exit.state)
    others = _others(ranks, first) if first is not None else ""
    return _with(said, others)


def _with(text: str, more: str) -> str:
    return "\n".join(filter(None, (text, more)))
