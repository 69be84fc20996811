"""The axis ``resume``: a run that is saved and goes on in new processes, and what gets lost on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ladders import Ladder, broken
from planting import axes, expected, matrix

from dist_checks.judging.verdict import ExitCode
from dist_checks.worker.faults import find

SMALL: dict[str, Any] = {"options": {"layers": 2, "width": 16, "samples": 61}, "steps": 4}
"""Two steps an epoch: it goes on with step 1, in the first epoch, and with step 3, in the second one."""


def passes(ladder: Ladder, include: list[str], values: dict[str, Any]) -> dict[str, Any]:
    outcome = ladder(values, combine={"mode": "singles", "include": include}, select=" or ".join(include), **SMALL)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    for rung in outcome.report["rungs"]:
        assert rung["checks"]["resume"] == ("pass" if "resume" in rung["id"] else "skip")
    return outcome.report


def test_the_same_layout(ladder: Ladder, tmp_path: Path) -> None:
    include = ["dp_replicate3+resume_same", "dp_shard2+tp2+resume_same"]
    report = passes(ladder, include, {"dp_replicate": 3, "dp_shard": 2, "tp": 2, "resume": "same"})
    [told] = [f for f in report["findings"] if (f["check"], f["rung"], f["step"]) == ("resume", include[0], 3)]
    assert told["message"].endswith("counters and random states are those that were saved before step 3")
    engaged = [f["message"] for f in report["findings"] if (f["check"], f["rung"]) == ("engaged", include[0])]
    assert [
        f"resume ({words})" in message
        for words, message in zip(
            ("saved before step 1", "new processes go on with step 1", "new processes go on with step 3"),
            engaged,
            strict=True,
        )
    ] == [True] * 3
    # Each set of processes has left files of its own.
    own = tmp_path / "run0" / "rungs" / include[0]
    assert [json.loads((own / name / "exit.json").read_text())["state"] for name in ("phase0", "phase1", "phase2")] == [
        "done"
    ] * 3
    assert not list(own.glob("checkpoint*")), "what has been loaded is no longer needed"
    [rung] = [rung for rung in report["rungs"] if rung["id"] == include[0]]
    assert rung["series"]["steps"] == [0, 1, 2, 3]
    assert None not in rung["series"]["loss"]


def test_another_layout_in_between(ladder: Ladder) -> None:
    include = ["dp_replicate4+resume_other", "tp2+sp+resume_other", "dp_shard3+resume_other", "pp2+resume_other"]
    values = {"dp_replicate": 4, "dp_shard": 3, "tp": 2, "sp": True, "pp": 2, "resume": "other"}
    report = passes(ladder, include, values)
    told = [f["message"] for f in report["findings"] if (f["check"], f["rung"]) == ("resume", include[0])]
    assert [message.rpartition(", ")[2] for message in told[1:]] == ["4 ranks and then 2", "2 ranks and then 4"]


FAULTS = ("O03", "O32", "optimizer_not_restored", "random_not_restored", "schedule_not_restored", "resume_off")


@pytest.mark.parametrize("id", FAULTS)
def test_what_is_not_restored_is_blamed_on_resume(ladder: Ladder, id: str) -> None:
    (fault,) = find(id)
    outcome = ladder(axes(fault), fault=id, **matrix(fault), blame={"budget": 0})
    assert outcome.exit_code() is ExitCode.FAIL
    assert broken(outcome.report) == expected(fault) == [["resume"]]
    for entry in outcome.report["broken"]:
        assert (entry["check"], entry["step"]) == (fault.check, fault.step)


def test_masks_go_on_where_they_were(ladder: Ladder) -> None:
    options = {**SMALL["options"], "dropout": 0.1}
    outcome = ladder({"resume": ["same", "other"]}, options=options, steps=4)
    status = {rung["id"]: rung["status"] for rung in outcome.report["rungs"]}
    # Two data ranks draw other masks than one device, rightly, and so all that follows is something else.
    assert (status["resume_same"], status["resume_other"]) == ("pass", "inconclusive")
    assert outcome.report["blamed"] == "not_comparable"


def test_a_layout_in_between_that_is_broken_by_itself_is_blamed(ladder: Ladder) -> None:
    """``resume_other`` goes on with two replicas, and these fail by themselves: found out by running them."""
    outcome = ladder({"resume": "other"}, fault="dp_replicate_off", blame={"budget": 2}, **SMALL)
    assert "dp_replicate2" in {rung["id"] for rung in outcome.report["rungs"]}
    assert broken(outcome.report) == [["dp_replicate"]]
