"""Of a test that hung: which ranks wait in which collective, and what the others do instead, in the judge's words."""

from __future__ import annotations

import re
from collections.abc import Container

from launch.base import Exit, Job

PYTEST_FRAME = re.compile(r", from \w+ \((?:python|unittest|runner|_callers|fixtures)\.py:\d+\)")
"""Whoever calls the body says nothing."""


def hung(job: Job, exit: Exit, over: Container[int]) -> str:
    """``over``: the ranks whose test had come to its end."""
    from dist_checks.judging.calls import read_calls
    from dist_checks.judging.hangs import told

    ended = {"killed": False, "code": 0}
    exits = {rank.rank: rank.as_json() | (ended if rank.rank in over else {}) for rank in exit.ranks}
    words = "; ".join(told(job.world_size, read_calls(job.folder, job.world_size), exits).words)
    said = PYTEST_FRAME.sub("", words).replace(" before its work was done", "")
    return f"hung: {said.replace('ended with exit code 0', 'come to the end of the test')}"
