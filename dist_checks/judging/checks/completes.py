"""Did the rung come to its end, on every rank?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dist_checks.judging.reading import rank_list
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView, Writer

ENDED_WRONG = {"failed": "failed", "timed_out": "did not end in time"}
GIVEN_UP = {"lost": "was lost", "cancelled": "was cancelled"}


def check(view: RungView) -> Iterator[Finding]:
    """A rung that crashes or hangs where one device ran is a failure; one whose node was lost is not decided."""
    writer = view.writer("completes")
    trace, steps = view.trace, view.rung.steps
    exit = view.exit
    if exit is None:
        yield writer.unseen("the launcher left no exit.json: the rung was not run")
        return
    state = str(exit.get("state"))
    last = max(trace.steps, default=-1)
    if state in ENDED_WRONG:
        yield _failed(writer, exit, state, last)
    elif state in GIVEN_UP:
        because = f": {exit['error']}" if exit.get("error") else ""
        yield writer.unseen(f"the job {GIVEN_UP[state]} after {last + 1} of {steps} steps{because}")
    elif state != "done":
        yield writer.unseen(f"the launcher reports a state that is not known: {state!r}")
    elif trace.cut:
        yield writer.unseen(f"the job is done, but its trace is not whole: {trace.cut}")
    elif last + 1 < steps:
        yield writer.failed(
            f"all ranks ended well after {last + 1} of {steps} steps", step=last + 1, observed=last + 1, allowed=steps
        )
    else:
        ranks = len(trace.ranks)
        yield writer.passed(f"{ranks} rank{'s' * (ranks > 1)} ran {steps} steps to the end")


def _failed(writer: Writer, exit: Mapping[str, Any], state: str, last: int) -> Finding:
    ranks = {rank["rank"]: rank for rank in exit.get("ranks") or () if isinstance(rank.get("rank"), int)}
    first = exit.get("first_failed")
    bad = ranks.get(first, {}) if isinstance(first, int) else {}
    how = ""
    if bad.get("signal"):
        how = f", signal {bad['signal']}"
    elif bad.get("code") is not None:
        how = f", exit code {bad['code']}"
    error = str(bad.get("error") or exit.get("error") or "").strip()
    # The last line of a traceback says what it was.
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    who = f"{rank_list([first])}{how}" if isinstance(first, int) else "the job"
    behind = [rank for rank, steps in _progress(writer).items() if steps < max(_progress(writer).values())]
    message = f"{who} {ENDED_WRONG[state]} in step {last + 1}"
    if lines:
        message += f": {lines[-1]}"
    if behind:
        message += f"; behind the others: {rank_list(behind)}"
    return writer.failed(
        message,
        step=last + 1,
        ranks=[first] if isinstance(first, int) else behind,
        observed=last + 1,
        allowed=writer.view.rung.steps,
    )


def _progress(writer: Writer) -> dict[int, int]:
    return {rank.rank: len(rank.steps) for rank in writer.view.trace.ranks}
