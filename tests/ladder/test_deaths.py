"""However a rank ends, the verdict names it, and what the others said because of it is no cause."""

from __future__ import annotations

from pathlib import Path

import pytest
from ladders import Ladder, broken, findings

from dist_checks.judging.verdict import ExitCode

FEW = {"options": {"layers": 1}, "blame": {"budget": 0}}


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("Killed", "rank 1, signal 9 failed in step 1"),
        ("Crashed", "rank 1, signal 11 failed in step 1"),
        ("Aborted", "rank 1, signal 6 failed in step 1"),
        ("Threw", "rank 1, exit code 1 failed in step 1: KeyError: 'no such batch'"),
        ("OutOfMemory", "rank 1, exit code 1 failed in step 1: RuntimeError: "),
        ("Left", "rank 1 left with exit code 0 before its work was done"),
        ("LeftAtOnce", "rank 1 left with exit code 0 before its work was done"),
    ],
)
def test_the_rank_that_ended_is_the_cause(
    ladder: Ladder, monkeypatch: pytest.MonkeyPatch, way: str, words: str
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    launch = {"cold_twin": False, "deadline": 60.0, "stall": 20.0}
    outcome = ladder({"dp_replicate": 3}, recipe=f"ending_recipe:{way}", launch=launch, **FEW)
    assert outcome.exit_code() is ExitCode.FAIL
    assert broken(outcome.report) == [["dp_replicate"]]
    [crash] = findings(outcome.report, "completes", "dp_replicate3")
    assert crash["message"].startswith(words), crash["message"]
    assert crash["ranks"] == [1]
    statuses = {rung["id"]: rung["status"] for rung in outcome.report["rungs"]}
    assert statuses["single"] == "pass"
