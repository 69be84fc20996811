"""``dist-checks judge DIR``, where DIR holds the trace of a job of the user's own instead of a run; ``--follow``."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from dist_checks.judging.production import Look, look
from dist_checks.judging.verdict import ExitCode
from dist_checks.matrix import ConfigError


def is_trace(folder: Path) -> bool:
    """Rather than a run."""
    return not (folder / "plan.json").exists() and any(folder.glob("rank-*.jsonl"))


def follow(folder: Path, say: Callable[[str], None], interval: float) -> Look:
    """Looks every so many seconds, until something is wrong or the job has ended; says what is new at each look."""
    before: tuple[int, ...] = ()
    while True:
        seen = look(folder)
        if seen is not None and (seen.wrong or seen.ended):
            return seen
        if seen is not None and seen.steps != before:
            say(seen.sentence)
            before = seen.steps
        time.sleep(interval)


def once(folder: Path) -> Look:
    """Raises ConfigError where no rank has written anything."""
    seen = look(folder)
    if seen is None:
        raise ConfigError(f"{folder}: no rank has written a header yet")
    return seen


def code(seen: Look) -> ExitCode:
    if seen.wrong:
        return ExitCode.FAIL
    return ExitCode.PASS if seen.judged else ExitCode.INCONCLUSIVE
