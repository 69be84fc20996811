"""Axes that are configured and not applied are seen by ``engaged`` and blamed, each alone; and sizes that matter."""

from __future__ import annotations

from typing import Any

import pytest
from ladders import Ladder, broken, findings

from dist_checks.judging.verdict import ExitCode

SMALL = {"options": {"layers": 2, "width": 16}, "steps": 2, "launch": {"cold_twin": False, "devices": 4}}

NOT_APPLIED = [
    ("dp_replicate_off", {"dp_replicate": 2}, "dp_replicate2", "dp_replicate (alone)"),
    ("O18", {"dp_shard": 2}, "dp_shard2", "dp_shard (alone)"),
    ("tp_off", {"tp": 2}, "tp2", "tp (alone)"),
    ("sp_off", {"tp": 2, "sp": True}, "tp2+sp", "sp (alone)"),
    ("accum_off", {"accum": 5}, "accum5", "accum (alone)"),
    ("precision_off", {"precision": "bf16"}, "bf16", "precision (alone; in bf16)"),
]


@pytest.mark.parametrize(("fault", "axes", "rung", "words"), NOT_APPLIED, ids=[case[0] for case in NOT_APPLIED])
def test_silently_not_applied(ladder: Ladder, fault: str, axes: dict[str, Any], rung: str, words: str) -> None:
    outcome = ladder(axes, fault=fault, **SMALL)
    assert outcome.report["sentence"] == f"FAIL broken: {words}"
    [entry] = outcome.report["broken"]
    assert entry["check"] == "engaged"
    assert findings(outcome.report, "engaged", rung)


def test_o18_replicas_drift(ladder: Ladder) -> None:
    """With HSDP as without: each rank trains on its own samples."""
    outcome = ladder({"dp_shard": 2, "dp_replicate": 2}, fault="O18", combine={"most": 2}, **SMALL)
    assert broken(outcome.report) == [["dp_shard"]]
    [parted] = findings(outcome.report, "replicas", "dp_shard2")
    assert parted["step"] == 0


def test_a_degree_that_fails_where_another_passes(ladder: Ladder) -> None:
    axes = {"tp": [2, 4], "accum": 5}
    outcome = ladder(axes, fault="tp4_reduced_in_pairs", select="(tp)", combine={"mode": "singles"}, **SMALL)
    assert outcome.report["sentence"] == "FAIL broken: tp (alone; 4 fails, 2 passes)"
    [entry] = outcome.report["broken"]
    assert entry["values"] == {"tp": 4}


def test_without_the_faults_these_ladders_pass(ladder: Ladder) -> None:
    axes = {"tp": [2, 4], "sp": True, "accum": 5, "dp_replicate": 2, "dp_shard": 2}
    outcome = ladder(axes, combine={"mode": "singles"}, **SMALL)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
