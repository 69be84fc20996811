"""Rungs that hang end within their deadline, with a sentence that says who waits where, and for whom."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ladders import Ladder, broken, findings

from dist_checks.judging.verdict import ExitCode

HANGS = {"cold_twin": False, "deadline": 120.0, "stall": 12.0}  # of a busy machine: a healthy rung is not to seem hung
ALL = "of the group of ranks 0, 1 and 2"
CASES = [
    # A rank with a batch more goes on, while the others have begun to evaluate: each waits for another.
    (
        "O08",
        {"dp_replicate": 3, "accum": 2},
        3,
        [2],
        r"hung after the last step: .* wait in all_reduce of double \[\] .* from count_targets \(loop.py.*; "
        r"first to differ: ranks 0 and 1 called broadcast of double \[\d+\] at forward \(loop.py.*, from evaluate .*, "
        r"rank 2 called all_reduce of double \[\] at sum_over_parts \(mesh.py:\d+\), from count_targets",
    ),
    (
        "O33",
        {"dp_replicate": 3, "accum": 2},
        3,
        [0],
        rf"rank 0 (called|waits in).* {ALL}.* was barrier at save_checkpoint \(barrier_on_rank_0.py.* on rank 0 and at "
        r"stop \(mesh.py.* on rank [12]",
    ),
    (
        "rank_sleeps",
        {"tp": 2, "dp_replicate": 2},
        2,
        [1],
        r"hung in step 2: rank 0 waits in \w+ of double .* of the group of ranks 0 and 1 .* at backward \(loop.py.*, "
        r"one ahead of rank 1, which is in sleep_first \(rank_sleeps.py:\d+\)",
    ),
    (
        "other_branch",
        {"dp_replicate": 3, "accum": 2},
        1,
        [2],
        rf"collective \d+ {ALL}: ranks 0 and 1 called all_reduce of double \[\] at sum_over_parts .*; rank 2 called "
        r"all_gather of double \[\] at gather_targets \(other_branch.py",
    ),
    (
        "member_skips",
        {"dp_shard": 3, "accum": 2},
        1,
        [0],
        rf"hung in step 1: ranks 1 and 2 wait in all_reduce .* {ALL} .*, one ahead of rank 0; rank 0 waits in "
        r"all_reduce of float \[7\] of the group of ranks 0 and 1 .* at report_first \(member_skips.py.*, one "
        r"ahead of rank 1",
    ),
    (
        "shapes_differ",
        {"dp_replicate": 3, "accum": 2},
        1,
        [0],
        rf"collective \d+ {ALL}: ranks 1 and 2 called all_reduce of float \[5\] at .*; rank 0 called all_reduce "
        r"of float \[4\] at report_first \(shapes_differ.py",
    ),
]


@pytest.mark.parametrize(("fault", "axes", "step", "ranks", "sentence"), CASES, ids=[case[0] for case in CASES])
def test_a_hang_is_explained(
    ladder: Ladder, fault: str, axes: dict[str, Any], step: int, ranks: list[int], sentence: str
) -> None:
    outcome = ladder(axes, fault=fault, launch=HANGS, options={"layers": 1}, blame={"budget": 0})
    axis, degree = next(iter(axes.items()))
    assert outcome.exit_code() is ExitCode.FAIL
    assert broken(outcome.report) == [[axis]]
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["step"], entry["ranks"]) == ("collectives", step, ranks)
    first = findings(outcome.report, "collectives", f"{axis}{degree}")[0]
    assert re.search(sentence, first["message"]), first["message"]
    assert max(rung["seconds"] for rung in outcome.report["rungs"]) < 60, (
        "hung ranks are ended long before the deadline"
    )
