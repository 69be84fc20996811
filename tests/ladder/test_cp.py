"""The sequence split over ranks: equal to one device alone and in combinations, and its faults are blamed on it."""

from __future__ import annotations

from typing import Any

import pytest
from ladders import Ladder, findings

from dist_checks.judging.verdict import ExitCode

SMALL = {"layers": 2, "samples": 123, "width": 16}


def distances(report: dict[str, Any]) -> dict[str, float]:
    """The largest relative distance of any gradient from that of one device, of each rung in float64."""
    return {
        rung["id"]: max(rung["series"]["gradient_distance"])
        for rung in report["rungs"]
        if rung["precision"] == "fp64" and rung["role"] == "rung"
    }


@pytest.mark.parametrize(
    ("degree", "together"),
    [
        (2, ["cp2+accum5", "dp_replicate2+dp_shard2+cp2"]),
        (2, ["dp_replicate2+cp2+tp2", "dp_shard2+cp2+tp2"]),
        (4, ["cp4+tp2+sp"]),
    ],
    ids=["data", "tp", "sp"],
)
def test_alone_and_combined_it_computes_what_one_device_computes(
    ladder: Ladder, degree: int, together: list[str]
) -> None:
    outcome = ladder({"cp": degree}, combine={"mode": "singles", "include": together}, steps=2, options=SMALL)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    found = distances(outcome.report)
    assert {f"cp{degree}", *together} <= set(found)
    assert max(found.values()) < 1e-11


def test_in_narrow_numbers(ladder: Ladder) -> None:
    outcome = ladder({"cp": 2, "dp_shard": 2, "precision": ["fp32", "bf16", "fp16"]}, options=SMALL)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]


LADDER = {"cp": 2, "dp_replicate": 3}
"""Degrees that no other axis has, so that a factor has one suspect."""


def test_o26_loss_multiplied_by_cp(ladder: Ladder) -> None:
    outcome = ladder(LADDER, fault="O26", options=SMALL)
    assert outcome.report["sentence"] == "FAIL broken: cp (alone)"
    [entry] = outcome.report["broken"]
    assert entry["step"] == 0
    assert entry["explanation"] == "every sample entered with weight 2.000: not divided by cp (2)"
    for rung in ("cp2", "dp_replicate3+cp2"):
        [gradients] = findings(outcome.report, "gradients", rung)
        assert gradients["explanation"] == "every gradient is 2 x the reference: not divided by cp (2)"
        before, after = gradients["residual"]
        assert before > 0.5
        assert after < 1e-10
        assert not findings(outcome.report, "loss", rung) or findings(outcome.report, "loss", rung)[0]["step"] > 0


def test_silently_not_applied(ladder: Ladder) -> None:
    outcome = ladder(LADDER, fault="cp_off", options=SMALL)
    assert outcome.report["sentence"] == "FAIL broken: cp (alone)"
    [entry] = outcome.report["broken"]
    assert entry["check"] == "engaged"
    assert "block outputs are of the same tokens as those of another rank" in entry["explanation"]


@pytest.mark.parametrize("fault", ["cp_positions", "cp_mask"])
def test_attention_that_takes_its_part_for_the_first(ladder: Ladder, fault: str) -> None:
    outcome = ladder(LADDER, fault=fault, options=SMALL)
    assert outcome.report["sentence"] == "FAIL broken: cp (alone)"
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["step"], entry["tensor"]) == ("forward", 0, "blocks.0")
    assert entry["explanation"].startswith("output blocks.0 of sample")
