"""Reports planted a second time, faults that need two axes or several steps, and what is said while it is undecided."""

from __future__ import annotations

import shutil

import pytest
from ladders import Ladder, broken
from planting import SMALL, axes, expected, matrix

from dist_checks.judging.judge import report
from dist_checks.judging.verdict import ExitCode
from dist_checks.selftest import secrecy
from dist_checks.worker.faults import again, find

TOGETHER = ("tp_ckpt_masks", "reduced_in_bf16")
LATER = ("local_sgd_begins", "weight_frozen", "shard_late")
EXPLAINED = {
    "shard_late": "1 gradient of 35 is stale in part: what rank 2 holds of it has the bits of the step before",
    "shards_swapped": "1 gradient of 35 is made of the reference's values in other places",
    "weight_frozen": "frozen since then: they moved at step 1",
    "O10-2": "divided by dp_replicate (3) once too often",
    "O26-2": "not divided by cp (2)",
    "O27-2": "every gradient of the experts is 2 x the reference: not divided by ep (2)",
    "O22-2": "their sum is right",
}
HERE = [fault.id for fault in again.FAULTS] + [
    *TOGETHER,
    *LATER,
    "shards_swapped",
    "strided_scatter",
    "O31",
    "balance_of_the_batch",
]


@pytest.mark.parametrize("id", HERE)
def test_it_is_caught_where_it_should_be_and_blamed_on_its_axes(ladder: Ladder, id: str) -> None:
    (fault,) = find(id)
    outcome = ladder(axes(fault), fault=id, **{"steps": 2, **matrix(fault)}, blame={"budget": 0})
    assert outcome.exit_code() is ExitCode.FAIL
    assert outcome.report["blamed"] == fault.blamed
    assert broken(outcome.report) == expected(fault)
    failing = [f for f in outcome.report["findings"] if f["status"] == "fail" and f["check"] == fault.check]
    assert min((f["step"] for f in failing if f["step"] is not None), default=None) == fault.step
    if id in TOGETHER:
        assert "only together" in outcome.report["sentence"]
    if words := EXPLAINED.get(id):
        told = [f["message"] + str(f.get("explanation")) for f in outcome.report["findings"] if f["status"] == "fail"]
        assert any(words in message for message in told), told
    assert not secrecy.told(outcome.folder, id, fault.title)


def test_masks_under_tp_are_those_of_one_device(ladder: Ladder) -> None:
    outcome = ladder({"tp": 2, "ckpt_act": True}, options={**SMALL, "dropout": 0.1})
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    assert {rung["id"] for rung in outcome.report["rungs"]} >= {"tp2", "tp2+ckpt_act"}


def test_a_reduction_in_bf16_is_not_told_from_what_a_job_in_bf16_rounds(ladder: Ladder) -> None:
    """The limit of what can be seen: 1.5 x the rounding of one device, where 2 x is allowed."""
    outcome = ladder({"dp_shard": 3, "precision": "bf16_fsdp"}, fault="reduced_in_bf16", options=SMALL)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]


def test_where_a_neighbour_was_lost_the_run_that_would_decide_is_named(ladder: Ladder) -> None:
    """The ladder as it was, but for the files of one rung."""
    outcome = ladder({"dp_replicate": 3, "accum": 5}, fault="O12", options=SMALL, steps=1, blame={"budget": 0})
    assert outcome.report["sentence"] == "FAIL broken: dp_replicate x accum (only together)"
    shutil.rmtree(outcome.folder / "rungs" / "accum5")
    found = report(outcome.folder)
    assert found["sentence"] == "FAIL broken: accum (not decided: accum5 is inconclusive: run again, it would decide)"
    assert [entry["decided"] for entry in found["broken"]] == [False]


def test_of_two_degrees_the_one_that_fails_is_named_with_the_one_that_passes(ladder: Ladder) -> None:
    (fault,) = find("tp4_reduced_in_pairs")
    outcome = ladder({"tp": [4, 2]}, fault=fault.id, **matrix(fault), blame={"budget": 0})
    assert outcome.report["sentence"] == "FAIL broken: tp (alone; 4 fails, 2 passes)"
