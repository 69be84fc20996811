"""The sequence split over ranks: equal to one device alone and in combinations, and its faults are blamed on it."""

from __future__ import annotations

from typing import Any

from ladders import Ladder

from dist_checks.judging.verdict import ExitCode

SMALL = {"layers": 2, "samples": 123}


def distances(report: dict[str, Any]) -> dict[str, float]:
    """The largest relative distance of any gradient from that of one device, of each rung in float64."""
    return {
        rung["id"]: max(rung["series"]["gradient_distance"])
        for rung in report["rungs"]
        if rung["precision"] == "fp64" and rung["role"] == "rung"
    }


def test_alone_and_combined_it_computes_what_one_device_computes(ladder: Ladder) -> None:
    together = (
        "cp2+accum5+ckpt_act",
        "dp_replicate3+cp2",
        "dp_shard3+cp2+accum3",
        "dp_replicate2+dp_shard2+cp2",
        "dp_replicate2+cp2+tp2",
        "dp_shard2+cp2+tp2",
        "cp4+tp2+sp",
    )
    outcome = ladder({"cp": [2, 4]}, combine={"mode": "singles", "include": together}, options=SMALL)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    found = distances(outcome.report)
    assert {"cp2", "cp4", *together} <= set(found)
    assert max(found.values()) < 1e-11


def test_in_narrow_numbers(ladder: Ladder) -> None:
    outcome = ladder({"cp": 2, "dp_shard": 2, "precision": ["fp32", "bf16", "fp16"]}, options=SMALL)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
