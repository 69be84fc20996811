"""Pipelines: every schedule computes what one device computes, alone and with the other axes."""

from __future__ import annotations

from ladders import Ladder

from dist_checks.judging.verdict import ExitCode
from dist_checks.session import Outcome

SMALL = {"options": {"layers": 2, "width": 16, "samples": 123}}


def healthy(outcome: Outcome, *rungs: str) -> None:
    """All passes, ``rungs`` among them, and every exact gradient is that of one device to better than 1e-11."""
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    judged = {rung["id"]: rung for rung in outcome.report["rungs"]}
    assert set(rungs) <= set(judged)
    for rung in judged.values():
        if rung["role"] == "rung" and rung["precision"] == "fp64":
            assert max(rung["series"]["gradient_distance"]) < 1e-11, rung["id"]


def evidence(outcome: Outcome, rung: str) -> str:
    """What proves that the axes are on."""
    [found] = [f for f in outcome.report["findings"] if (f["check"], f["rung"]) == ("engaged", rung)]
    return str(found["message"])


def test_every_schedule(ladder: Ladder) -> None:
    outcome = ladder({"pp": [2, 4], "schedule": ["1f1b", "interleaved", "zerobubble"], "accum": 5}, **SMALL)
    healthy(outcome, "pp2", "pp4", "pp2+1f1b", "pp4+1f1b", "pp2+interleaved", "pp2+accum5", "pp2+interleaved+accum5")
    assert "1F0 1B0 1F1 1B1" in evidence(outcome, "pp2+1f1b")
    assert "1F0 1F1 3F0 3B0" in evidence(outcome, "pp2+interleaved")
    assert "35 parameters over 4 ranks: 1, 16, 16, 3" in evidence(outcome, "pp4")
    assert "20 micro-batches a step" in evidence(outcome, "pp2+accum5")
