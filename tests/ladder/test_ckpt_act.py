"""Activation checkpointing changes no number, and what goes wrong with it is blamed on it."""

from __future__ import annotations

from typing import Any

import pytest
from ladders import Ladder, findings

from dist_checks.judging.verdict import ExitCode

SMALL = {"options": {"layers": 2, "width": 16}}
DROPOUT = {"options": {"layers": 2, "width": 16, "dropout": 0.1}}


def worst(report: dict[str, Any]) -> float:
    """Largest relative distance of a gradient to one device over all rungs in float64."""
    exact = [rung for rung in report["rungs"] if rung["precision"] == "fp64" and rung["role"] == "rung"]
    return max(max(rung["series"]["gradient_distance"]) for rung in exact)


def test_it_passes_alone_and_with_other_axes(ladder: Ladder) -> None:
    axes = {"ckpt_act": True, "dp_replicate": 2, "dp_shard": 2, "tp": 2, "sp": True, "accum": 5}
    pairs = {"combine": {"most": 3}, "launch": {"cold_twin": False, "devices": 4}}
    outcome = ladder({**axes, "precision": ["bf16", "fp16"]}, select="(ckpt_act)", **SMALL, **pairs)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    ids = {rung["id"] for rung in outcome.report["rungs"]}
    assert ids >= {"ckpt_act", "ckpt_act+bf16", "ckpt_act+fp16"}, ids
    assert worst(outcome.report) < 1e-11
    with_it = [rung["axes"] for rung in outcome.report["rungs"] if "ckpt_act" in rung["axes"]]
    assert {axis for setting in with_it for axis in setting} == {*axes, "precision"}


def test_with_dropout_it_draws_the_masks_of_one_device(ladder: Ladder) -> None:
    outcome = ladder({"ckpt_act": True, "precision": "bf16"}, **DROPOUT)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    assert worst(outcome.report) < 1e-11


def test_dropout_under_another_layout_is_not_comparable(ladder: Ladder) -> None:
    outcome = ladder({"ckpt_act": True, "accum": 5}, **DROPOUT)
    statuses = {rung["id"]: rung["status"] for rung in outcome.report["rungs"]}
    assert outcome.exit_code() is ExitCode.INCONCLUSIVE
    assert statuses["ckpt_act"] == "pass"
    assert statuses["accum5"] == statuses["accum5+ckpt_act"] == "inconclusive"


@pytest.mark.parametrize("axes", [{"ckpt_act": True}, {"ckpt_act": True, "precision": "bf16"}], ids=["exact", "bf16"])
def test_o29_masks_drawn_again(ladder: Ladder, axes: dict[str, Any]) -> None:
    outcome = ladder(axes, fault="O29", **DROPOUT)
    assert outcome.exit_code() is ExitCode.FAIL
    assert outcome.report["sentence"] == "FAIL broken: ckpt_act (alone)"
    [entry] = outcome.report["broken"]
    assert entry["step"] == 0
    assert findings(outcome.report, "gradients", "ckpt_act")
    assert not [f for f in findings(outcome.report, "loss", "ckpt_act") if f["step"] == 0], "equal to the last bit"


def test_o29_is_silent_without_dropout(ladder: Ladder) -> None:
    outcome = ladder({"ckpt_act": True}, fault="O29", **SMALL)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]


def test_checkpointing_not_active(ladder: Ladder) -> None:
    outcome = ladder({"ckpt_act": True, "tp": 2}, fault="ckpt_act_off", **SMALL)
    assert outcome.report["sentence"] == "FAIL broken: ckpt_act (alone)"
    [entry] = outcome.report["broken"]
    assert entry["check"] == "engaged"
