"""Each planted fault is caught by the check that must see it, where it is, and blamed on exactly its axes."""

from __future__ import annotations

import io
from typing import Any

import pytest
from ladders import Ladder, broken, findings

from dist_checks.judging.verdict import ExitCode
from dist_checks.report import terminal

SGD = {"optimizer": "sgd", "learning_rate": 0.1}


def weights(report: dict[str, Any], rung: str) -> list[float]:
    """With which each sample entered the first gradient."""
    contributions = next(judged["contributions"] for judged in report["rungs"] if judged["id"] == rung)
    return list(contributions["weights"])


@pytest.mark.parametrize("train", [{}, SGD], ids=["adamw", "sgd"])
def test_o09_mean_of_means(ladder: Ladder, train: dict[str, Any]) -> None:
    outcome = ladder({"dp_replicate": 3, "accum": 5}, fault="O09", train=train)
    assert outcome.exit_code() is ExitCode.FAIL
    assert broken(outcome.report) == [["accum"], ["dp_replicate"]]
    assert outcome.report["sentence"] == "FAIL broken: dp_replicate (alone); accum (alone)"
    for entry in outcome.report["broken"]:
        assert entry["step"] == 0
        before, after = entry["residual"]
        assert before > 0.01
        assert after < 1e-10
        assert entry["explanation"].startswith("a mean of means: each ")
    # Every sample of a data rank has the same wrong weight: three values, two of them different at least.
    assert 2 <= len({round(weight, 9) for weight in weights(outcome.report, "dp_replicate3")}) <= 3
    assert len({round(weight, 9) for weight in weights(outcome.report, "accum5")}) == 5
    message = findings(outcome.report, "contributions", "accum5")[0]["message"]
    assert "micro-batch" in message


def test_o09_is_no_mistake_where_all_counts_are_equal(ladder: Ladder) -> None:
    equal = {"options": {"ragged": False, "samples": 60}, "train": {"batch": 30}}
    outcome = ladder({"dp_replicate": 3, "accum": 5}, fault="O09", **equal)
    assert outcome.report["sentence"].startswith("PASS")


def test_o11_last_micro_batch_not_reduced(ladder: Ladder) -> None:
    outcome = ladder({"dp_replicate": 3, "accum": 5}, fault="O11")
    assert outcome.exit_code() is ExitCode.FAIL
    assert broken(outcome.report) == [["accum", "dp_replicate"]]
    assert "only together" in outcome.report["sentence"]
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["step"]) == ("replicas", 0)
    assert set(entry["ranks"]) <= {0, 1, 2}
    [weighed] = findings(outcome.report, "contributions", "dp_replicate3+accum5")
    printed = io.StringIO()
    terminal.summary(outcome.report, printed, links={})
    assert f"     weights  {weighed['message']}\n" in printed.getvalue()
    assert len({round(weight, 6) for weight in weights(outcome.report, "dp_replicate3+accum5")}) > 1


def test_o15_parameter_replaced(ladder: Ladder) -> None:
    outcome = ladder({"dp_replicate": 3, "accum": 5}, fault="O15")
    assert outcome.exit_code() is ExitCode.FAIL
    assert broken(outcome.report) == [["dp_replicate"]]
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["step"]) == ("replicas", 0)
    # Its whole bucket stays on its rank, so another parameter of it may come first in the model.
    names = {finding["tensor"] for finding in findings(outcome.report, "replicas", "dp_replicate3")}
    assert entry["tensor"] in names
    assert findings(outcome.report, "completes", "dp_replicate3"), "torch refuses the next forward pass"


def test_o17_initial_weights_of_each_replica(ladder: Ladder) -> None:
    outcome = ladder({"dp_replicate": 3, "dp_shard": 2}, fault="O17")
    assert outcome.exit_code() is ExitCode.FAIL
    assert broken(outcome.report) == [["dp_replicate", "dp_shard"]]
    [entry] = outcome.report["broken"]
    assert entry["check"] == "replicas"
    assert entry["step"] in (None, -1), "before the first step"
    assert entry["values"] == {"dp_replicate": 3, "dp_shard": 2}


def test_o20_norm_of_the_local_shard(ladder: Ladder) -> None:
    outcome = ladder({"dp_shard": 3, "dp_replicate": 2}, fault="O20")
    assert outcome.exit_code() is ExitCode.FAIL
    assert broken(outcome.report) == [["dp_shard"]]
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["step"]) == ("grad_norm", 0)


def test_o22_norm_gradients_not_summed(ladder: Ladder) -> None:
    outcome = ladder({"tp": 2, "sp": True, "accum": 5}, fault="O22")
    assert outcome.exit_code() is ExitCode.FAIL
    assert broken(outcome.report) == [["sp"]]
    [entry] = outcome.report["broken"]
    assert (entry["step"], entry["tensor"], entry["ranks"]) == (0, "blocks.0.norm1.weight", [0, 1])
    before, after = entry["residual"]
    assert before > 1e-2
    assert after < 1e-10
    assert "sum" in entry["explanation"]


def test_o24_tp_ranks_read_different_samples(ladder: Ladder) -> None:
    outcome = ladder({"tp": 2, "dp_replicate": 3}, fault="O24")
    assert outcome.exit_code() is ExitCode.FAIL
    assert broken(outcome.report) == [["tp"]]
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["step"], entry["ranks"]) == ("samples", 0, [0, 1])


def test_o30_clipped_before_unscaling(ladder: Ladder) -> None:
    outcome = ladder({"precision": ["bf16", "fp16"], "dp_replicate": 3}, fault="O30")
    assert outcome.exit_code() is ExitCode.FAIL
    assert broken(outcome.report) == [["precision"]]
    [entry] = outcome.report["broken"]
    assert entry["values"] == {"precision": "fp16"}
    assert (entry["check"], entry["step"]) == ("grad_norm", 0)


def test_an_accepted_finding_is_shown_and_does_not_count_until_its_date(ladder: Ladder) -> None:
    known = {"reason": "our printer is wrong", "rung": "dp_shard3", "check": "grad_norm"}
    accepted = ladder({"dp_shard": 3}, fault="O20", accept=[{**known, "until": "2999-01-31"}])
    assert {(f["check"], f["reason"]) for f in accepted.report["accepted"]} == {("grad_norm", known["reason"])}
    [rung] = [rung for rung in accepted.report["rungs"] if rung["id"] == "dp_shard3"]
    assert rung["checks"]["grad_norm"] == "accepted"
    assert not findings(accepted.report, "grad_norm", "dp_shard3")
    expired = ladder({"dp_shard": 3}, fault="O20", accept=[{**known, "until": "2020-01-31"}])
    assert not expired.report["accepted"]
    assert broken(expired.report) == [["dp_shard"]]


PRECISIONS = ["fp32", "bf16", "fp16"]


@pytest.mark.parametrize(
    ("fault", "axis", "check"),
    [
        ("gradient_scaled", {"dp_replicate": 3}, "gradients"),
        ("gradient_scaled", {"tp": 2}, "gradients"),
        ("gradient_scaled", {"dp_shard": 3}, "gradients"),
        ("head_zeroed", {"dp_replicate": 3}, "forward"),
        ("head_zeroed", {"tp": 2}, "forward"),
        ("bit_flipped", {"dp_replicate": 3}, "replicas"),
        ("bit_flipped", {"tp": 2}, "replicas"),
    ],
)
def test_small_errors_are_caught_in_every_precision(
    ladder: Ladder, fault: str, axis: dict[str, Any], check: str
) -> None:
    outcome = ladder({**axis, "precision": PRECISIONS}, fault=fault)
    [(name, degree)] = axis.items()
    assert outcome.exit_code() is ExitCode.FAIL
    assert broken(outcome.report) == [[name]]
    for rung in (f"{name}{degree}", *(f"{name}{degree}+{precision}" for precision in PRECISIONS)):
        assert findings(outcome.report, check, rung), rung


def test_without_a_fault_all_of_these_ladders_pass(ladder: Ladder) -> None:
    for axes in ({"dp_replicate": 3, "accum": 5}, {"dp_replicate": [3, 2], "dp_shard": [3, 2]}):
        outcome = ladder(axes)
        assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    outcome = ladder({"tp": 2, "sp": True, "precision": PRECISIONS})
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
