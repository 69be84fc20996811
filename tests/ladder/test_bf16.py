"""bf16 parameters, and FSDP2's mixed precision: judged like autocast, and steps that vanish are seen."""

from __future__ import annotations

from ladders import Ladder

from dist_checks.judging.verdict import ExitCode

SMALL = {"options": {"layers": 2, "width": 16}, "launch": {"cold_twin": False, "devices": 4}}


def test_bf16_parameters_and_the_casts_of_fsdp_pass_with_other_axes(ladder: Ladder) -> None:
    axes = {"dp_replicate": 2, "dp_shard": 3, "tp": 2, "accum": 5, "precision": ["bf16_pure", "bf16_fsdp"]}
    outcome = ladder(axes, select="bf16_pure or bf16_fsdp", **SMALL)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    ids = {rung["id"] for rung in outcome.report["rungs"]}
    structural = ("dp_replicate2", "dp_shard3", "tp2", "accum5")
    for precision in ("bf16_pure", "bf16_fsdp"):
        assert ids >= {precision, *(f"{axis}+{precision}" for axis in structural)}


def test_o31_parameters_that_never_move(ladder: Ladder) -> None:
    """workofart/ml-by-hand PR#85: what bf16 parameters do at a small learning rate, on one device and on two."""
    axes = {"dp_replicate": 2, "precision": ["bf16", "bf16_pure"]}
    outcome = ladder(axes, train={"learning_rate": 1e-5}, **SMALL)
    assert outcome.report["sentence"] == "FAIL broken: precision (alone; in bf16_pure)"
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["step"]) == ("updates", 0)
    assert "of the updates arrive in bfloat16 parameters" in entry["explanation"]
