"""Compiled blocks and fused kernels: judged like the plain ones, and seen where they are silently not in use."""

from __future__ import annotations

from typing import Any

import pytest
from ladders import Ladder, findings

from dist_checks.judging.verdict import ExitCode

SMALL = {"options": {"layers": 2, "width": 16}}
PLAIN = {**SMALL, "recipe": "plain_recipe:Plain"}
FOUR = {"launch": {"cold_twin": False, "devices": 4, "deadline": 280.0}}


def worst(report: dict[str, Any]) -> float:
    """Largest relative distance of a gradient in float64, of rungs and of singles with other kernels."""
    exact = [rung for rung in report["rungs"] if rung["precision"] == "fp64" and rung["id"] != "single"]
    assert exact
    return max(max(rung["series"]["gradient_distance"]) for rung in exact)


def test_fused_kernels_pass_alone_and_with_other_axes(ladder: Ladder) -> None:
    axes = {"fused": True, "dp_replicate": 2, "dp_shard": 3, "tp": 2, "sp": True, "precision": ["bf16", "fp16"]}
    outcome = ladder(axes, select="(fused)", **SMALL, **FOUR)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    ids = {rung["id"] for rung in outcome.report["rungs"]}
    assert ids >= {"fused", "fused+bf16", "fused+fp16", "dp_replicate2+fused", "dp_shard3+fused", "tp2+sp+fused"}
    assert 0 < worst(outcome.report) < 1e-11, "other kernels round otherwise"
    [seen] = [f["message"] for f in outcome.report["findings"] if (f["check"], f["rung"]) == ("engaged", "fused")]
    assert "ScaledDotProduct" in seen
    assert "a fused optimizer" in seen


def test_fused_kernels_silently_not_used(ladder: Ladder) -> None:
    outcome = ladder({"fused": True, "precision": "bf16", "dp_replicate": 2}, fault="fused_off", **SMALL)
    assert outcome.report["sentence"] == "FAIL broken: fused (alone)"
    assert [entry["check"] for entry in outcome.report["broken"]] == ["engaged"]
    assert findings(outcome.report, "engaged", "dp_replicate2+fused")


def test_compiled_blocks_pass_alone_and_with_other_axes(ladder: Ladder) -> None:
    """A graph takes half a minute where the cache of inductor is empty, so there are two: with tp and without."""
    axes = {"compile": True, "dp_replicate": 2, "tp": 2, "ckpt_act": True}
    outcome = ladder(axes, select="(compile) and not tp2+ckpt", **PLAIN, **FOUR)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    ids = {rung["id"] for rung in outcome.report["rungs"]}
    assert ids >= {"compile", "dp_replicate2+compile", "tp2+compile", "ckpt_act+compile"}
    assert 0 < worst(outcome.report) < 1e-11, "compiled code rounds otherwise"


@pytest.mark.parametrize("axes", [{"dp_replicate": 2}, {"precision": "bf16"}], ids=str)
def test_compilation_that_falls_back(ladder: Ladder, axes: dict[str, Any]) -> None:
    outcome = ladder({"compile": True, **axes}, fault="compile_off", **PLAIN)
    assert outcome.report["sentence"] == "FAIL broken: compile (alone)"
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["axes"]) == ("engaged", ["compile"])
