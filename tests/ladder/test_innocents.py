"""What users took for a mistake of their parallelism and was none: nothing is found, in any precision.

One test a case; ``dist-checks selftest --faults none --healthy N`` runs them all.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from ladders import Ladder

from dist_checks.judging.verdict import ExitCode
from dist_checks.selftest.innocents import INNOCENTS

BY_ID = {innocent.id: innocent for innocent in INNOCENTS}


def quiet(ladder: Ladder, id: str) -> list[dict[str, Any]]:
    """The reports of its ladders, in which nothing was found."""
    innocent, reports = BY_ID[id], []
    for matrix in innocent.matrices():
        outcome = ladder(matrix.pop("axes"), fault=innocent.fault, **matrix)
        raised = [f["message"] for f in outcome.report["findings"] if f["status"] in ("fail", "inconclusive")]
        assert (raised, outcome.exit_code()) == ([], ExitCode.PASS), outcome.report["sentence"]
        reports.append(outcome.report)
    return reports


def messages(report: dict[str, Any], check: str) -> dict[str, str]:
    """Of that check, by rung."""
    return {f["rung"]: f["message"] for f in report["findings"] if f["check"] == check}


def observed(report: dict[str, Any], check: str, rung: str) -> float:
    return max(f["observed"] for f in report["findings"] if (f["check"], f["rung"]) == (check, rung))


def test_all_twelve_are_there() -> None:
    assert list(BY_ID) == [f"I{number:02d}" for number in range(1, 13)]


def test_i01_sums_in_another_order_each_time(ladder: Ladder) -> None:
    [report] = quiet(ladder, "I01")
    assert 0 < observed(report, "gradients", "dp_replicate3") < 1e-13, "the order was another one"


def test_i02_micro_batches_in_reverse(ladder: Ladder) -> None:
    [report] = quiet(ladder, "I02")
    assert 0 < observed(report, "gradients", "accum5") < 1e-13


def test_i03_tensor_parallel_in_16_bits(ladder: Ladder) -> None:
    for report, rung in zip(quiet(ladder, "I03"), ("tp4+bf16", "tp2+bf16"), strict=True):
        assert observed(report, "gradients", rung) > 1e-3, "far from one device, as rounding is"


@pytest.mark.timeout(900)  # three ladders of fifty steps
def test_i04_fifty_steps_in_16_bits(ladder: Ladder) -> None:
    for report in quiet(ladder, "I04"):
        for rung in report["rungs"]:
            losses = zip(rung["series"]["loss"], rung["series"]["reference_loss"], strict=True)
            assert all(math.isclose(a, b, rel_tol=0.05) for a, b in losses if a is not None and b is not None)


def test_i05_each_rank_prints_the_norm_of_its_shards(ladder: Ladder) -> None:
    [report] = quiet(ladder, "I05")
    assert "prints at step 0" in messages(report, "grad_norm")["dp_shard3"]


def test_i06_the_norm_before_clipping_is_printed(ladder: Ladder) -> None:
    quiet(ladder, "I06")


def test_i07_gradients_read_when_they_are_complete(ladder: Ladder) -> None:
    quiet(ladder, "I07")


def test_i08_a_seed_for_each_rank_under_ddp(ladder: Ladder) -> None:
    quiet(ladder, "I08")


def test_i09_the_loss_times_cp(ladder: Ladder) -> None:
    quiet(ladder, "I09")


def test_i10_a_loss_with_dropout_is_above_that_without(ladder: Ladder) -> None:
    """The harness never evaluates: the nearest to a validation loss is that of the same model without dropout."""
    [report] = quiet(ladder, "I10")
    losses = {rung["id"]: rung["series"]["loss"] for rung in report["rungs"]}
    assert losses["custom.dropout"][0] != losses["single"][0]


def test_i11_the_loss_of_one_batch_is_printed(ladder: Ladder) -> None:
    [report] = quiet(ladder, "I11")
    for rung in ("accum5", "dp_replicate3"):
        assert "is not the loss of the batch" in messages(report, "loss")[rung]


def test_i12_each_rank_prints_its_own_loss(ladder: Ladder) -> None:
    [report] = quiet(ladder, "I12")
    assert "is not the loss of the batch" in messages(report, "loss")["dp_shard3"]


@pytest.mark.parametrize(("id", "where", "check"), [("I08", "dp_shard2+dp_replicate2", "replicas")])
def test_and_where_it_is_no_innocent_it_is_found(ladder: Ladder, id: str, where: str, check: str) -> None:
    """Under HSDP nobody hands the weights of rank 0 round: pytorch/torchtitan#166."""
    other = replace(BY_ID[id], ladders=({"axes": {}, "combine": {"mode": "singles", "include": [where]}},))
    [matrix] = other.matrices()
    report = ladder(matrix.pop("axes"), fault=other.fault, **matrix).report
    assert {f["check"] for f in report["findings"] if f["status"] == "fail"} >= {check}
