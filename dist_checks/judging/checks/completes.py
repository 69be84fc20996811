"""Did the rung come to its end, on every rank?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from dist_checks.judging.calls import read_calls
from dist_checks.judging.losses import losses
from dist_checks.judging.reading import rank_list
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView, Writer
from dist_checks.trace import Kind

ENDED_WRONG = {"failed": "failed", "timed_out": "did not end in time"}
DISK = r"\bNotWritten: |OSError: \[Errno (28|30|122)\]"  # full, read-only, over quota
AT_EXIT = (6, 7, 11)  # SIGABRT, SIGBUS, SIGSEGV
GIVEN_UP = {"lost": "was lost", "cancelled": "was cancelled"}


def check(view: RungView) -> Iterator[Finding]:
    """A rung that crashes or hangs where one device ran is a failure; one whose node was lost is not decided."""
    writer = view.writer("completes")
    trace, steps = view.trace, view.stop
    exit = view.exit
    if exit is None:
        if (trace.folder / "exit.json").exists():
            yield writer.unseen("exit.json is damaged: how the rung ended is not known")
        else:
            yield writer.unseen("the launcher left no exit.json: the rung was not run")
        return
    state = str(exit.get("state"))
    last = max(trace.steps, default=view.start - 1)
    if (why := _not_written(exit)) and state in ENDED_WRONG:
        yield writer.unseen(f"{why[1]} after {last + 1} of {steps} steps", ranks=[why[0]])
    elif state == "failed" and (died := _died_after_all(view, exit)):
        yield writer.passed(f"{len(trace.ranks)} ranks ran {steps} steps to the end; {died} after that")
    elif state in ENDED_WRONG:
        yield _failed(writer, exit, state, last)
    elif state in GIVEN_UP:
        because = f": {exit['error']}" if exit.get("error") else ""
        yield writer.unseen(f"the job {GIVEN_UP[state]} after {last + 1} of {steps} steps{because}")
    elif state != "done":
        yield writer.unseen(f"exit.json has a state that is not known: {state!r}")
    elif early := _left_early(view, exit):
        yield writer.failed(
            f"{rank_list(early)} left with exit code 0 in step {last + 1} of {steps}, before its work was done",
            step=last + 1,
            ranks=early,
            observed=last + 1,
            allowed=steps,
        )
    elif trace.cut:
        yield writer.unseen(f"the job is done, but its trace is not whole: {trace.cut}")
    elif view.log_only and not losses(view.own) and not len(view.own.full(Kind.WEIGHT)):
        yield writer.unseen("it came to its end, and told and saved nothing that could be compared")
    elif last + 1 < steps and view.own_loop and view.rung.is_zero:
        yield writer.skipped(f"the script came to its end after {last + 1} of {steps} steps: it reads no more epochs")
    elif last + 1 < steps and not view.log_only:
        yield writer.failed(
            f"all ranks ended well after {last + 1} of {steps} steps", step=last + 1, observed=last + 1, allowed=steps
        )
    else:
        ranks = len(trace.ranks)
        yield writer.passed(f"{ranks} rank{'s' * (ranks > 1)} ran {steps} steps to the end")


def _exits(exit: Mapping[str, Any]) -> dict[int, Mapping[str, Any]]:
    return {rank["rank"]: rank for rank in exit.get("ranks") or () if isinstance(rank.get("rank"), int)}


def _not_written(exit: Mapping[str, Any]) -> tuple[int, str] | None:
    """(rank, what it said) of the one that failed first, if a disk is to blame: no axis is, then."""
    first = exit.get("first_failed")
    lines = str(_exits(exit).get(first, {}).get("error") or "").strip().splitlines() if isinstance(first, int) else []
    said = lines[-1] if lines else ""
    if not isinstance(first, int) or not re.search(DISK, said):
        return None
    return first, f"rank {first} could not write: {said.partition('] ')[2] or said}"


def _left_early(view: RungView, exit: Mapping[str, Any]) -> list[int]:
    """Ranks that ended well by themselves, and had not come to the end of their work. Where files are damaged it may
    have been otherwise."""
    calls = read_calls(view.trace.folder, view.layout.world_size)
    return [
        rank.rank
        for rank in view.trace.ranks
        if (ended := _exits(exit).get(rank.rank, {})).get("code") == 0
        and not ended.get("killed")
        and not rank.ended
        and not rank.problems
        and (found := calls.get(rank.rank)) is not None
        and not (found.problem or found.ended or found.left)
    ]


def _died_after_all(view: RungView, exit: Mapping[str, Any]) -> str:
    """Some libraries abort while the interpreter ends (DeepSpeed does): all that was to be done had been done."""
    calls = read_calls(view.trace.folder, view.layout.world_size)
    whole = not view.trace.cut and len(view.trace.steps) == view.stop - view.start
    if not whole or not all(rank in calls and calls[rank].left for rank in range(view.layout.world_size)):
        return ""
    bad = {rank: ended for rank, ended in _exits(exit).items() if ended.get("signal") or ended.get("code")}
    if not bad or any(ended.get("code") or ended["signal"] not in AT_EXIT for ended in bad.values()):
        return ""
    return f"{rank_list(sorted(bad))} died of signal {min(ended['signal'] for ended in bad.values())}"


def _failed(writer: Writer, exit: Mapping[str, Any], state: str, last: int) -> Finding:
    ranks = _exits(exit)
    first = exit.get("first_failed")
    bad = ranks.get(first, {}) if isinstance(first, int) else {}
    how = ""
    if bad.get("signal"):
        how = f", signal {bad['signal']}"
    elif bad.get("code") is not None:
        how = f", exit code {bad['code']}"
    own, lines = _lines(bad.get("error")), _lines(exit.get("error"))
    who = f"{rank_list([first])}{how}" if isinstance(first, int) else "the job"
    behind = [rank for rank, steps in _progress(writer).items() if steps < max(_progress(writer).values())]
    early = _left_early(writer.view, exit)
    left = f"{rank_list(early)} left with exit code 0 before its work was done; then " if early else ""
    message = f"{left}{who} {ENDED_WRONG[state]} in step {last + 1}"
    if own:
        message += f": {own[-1]}"  # of a traceback that says what it was
    elif bad and lines:
        message += f": {lines[0].partition(' after the start: ')[2] or lines[0]}"  # what follows are consequences
    elif lines:
        message += f": {lines[-1]}"
    if behind:
        message += f"; behind the others: {rank_list(behind)}"
    return writer.failed(
        message,
        step=last + 1,
        ranks=early or ([first] if isinstance(first, int) else behind),
        observed=last + 1,
        allowed=writer.view.stop,
    )


def _lines(text: object) -> list[str]:
    return [line.strip() for line in str(text or "").splitlines() if line.strip()]


def _progress(writer: Writer) -> dict[int, int]:
    return {rank.rank: len(rank.steps) for rank in writer.view.trace.ranks}
