"""Pipelines: every schedule computes what one device computes, alone and with the other axes."""

from __future__ import annotations

from typing import Any

import pytest
from ladders import Ladder, findings

from dist_checks import ConfigError
from dist_checks.judging.verdict import ExitCode
from dist_checks.session import Outcome

SMALL: dict[str, Any] = {"options": {"layers": 2, "width": 16, "samples": 123}, "steps": 2, "blame": {"budget": 0}}


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
    combine = {"include": ["pp2+interleaved+accum5"]}
    outcome = ladder({"pp": [2, 4], "schedule": ["1f1b", "interleaved", "zerobubble"]}, combine=combine, **SMALL)
    healthy(outcome, "pp2", "pp4", "pp2+1f1b", "pp4+1f1b", "pp2+interleaved", "pp2+accum5", "pp2+interleaved+accum5")
    assert "1F0 1B0 1F1 1B1" in evidence(outcome, "pp2+1f1b")
    assert "1F0 1F1 3F0 3B0" in evidence(outcome, "pp2+interleaved")
    assert "35 parameters over 4 ranks: 1, 16, 16, 3" in evidence(outcome, "pp4")
    assert "20 micro-batches a step" in evidence(outcome, "pp2+accum5")


def test_data_ranks(ladder: Ladder) -> None:
    """DDP and FSDP2 around each stage; with accumulation, several passes before one step of the optimizer."""
    settings = ["pp2+dp_replicate2+interleaved", "pp2+dp_shard2+zerobubble", "pp2+dp_shard3+accum2"]
    outcome = ladder({"pp": 2}, combine={"mode": "singles", "include": settings}, **SMALL)
    healthy(outcome, *settings)


def test_tensor_parallel_stages(ladder: Ladder) -> None:
    settings = ["pp2+tp2+sp", "pp2+dp_replicate2+tp2"]
    outcome = ladder({"pp": 2}, combine={"mode": "singles", "include": settings}, **SMALL)
    healthy(outcome, *settings)


def test_narrow_numbers_and_activation_checkpointing(ladder: Ladder) -> None:
    settings = ["pp2+interleaved+fp16", "pp2+1f1b+ckpt_act"]
    outcome = ladder({"pp": 2}, combine={"mode": "singles", "include": settings}, **SMALL)
    healthy(outcome, *settings)


def test_untied_and_sgd(ladder: Ladder) -> None:
    """Nothing to add up over stages; and the steps of each stage's own optimizer are those of SGD's formula."""
    sgd = {"optimizer": "sgd", "learning_rate": 0.1}
    options = {**SMALL["options"], "tied": False}
    outcome = ladder({"pp": 2}, **{**SMALL, "options": options}, train=sgd)
    healthy(outcome, "pp2")
    told = [f["message"] for f in outcome.report["findings"] if (f["check"], f["rung"]) == ("updates", "pp2")]
    assert any("72 steps are those of SGD's formula" in message for message in told), told


def test_o14_what_was_accumulated_is_divided_again(ladder: Ladder) -> None:
    outcome = ladder({"pp": 2, "accum": 5}, fault="O14", **SMALL)
    assert outcome.report["sentence"] == "FAIL broken: pp x accum (only together)"
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["step"]) == ("contributions", 0)
    assert "divided what the passes before it had left by its micro-batches (4)" in entry["explanation"]
    before, after = entry["residual"]
    assert before > 0.1
    assert after < 1e-10


@pytest.mark.parametrize("pp", [2, 4])
def test_o25_tied_copies_are_not_summed(ladder: Ladder, pp: int) -> None:
    outcome = ladder({"pp": pp, "accum": 5}, fault="O25", **SMALL)
    assert outcome.report["sentence"] == "FAIL broken: pp (alone)"
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["step"], entry["tensor"]) == ("replicas", 0, "embedding.weight")
    assert entry["ranks"] == [0, pp - 1]
    assert "2 pieces by the pp ranks, each taken for the whole: their sum is right" in entry["explanation"]
    [found] = findings(outcome.report, "replicas", f"pp{pp}")
    assert f"embedding.weight (head.weight on rank {pp - 1})" in found["message"]
    [gradient, *_] = findings(outcome.report, "gradients", f"pp{pp}")
    assert gradient["tensor"] == "embedding.weight"


def test_a_pipeline_that_is_not_cut(ladder: Ladder) -> None:
    outcome = ladder({"pp": 2, "accum": 5}, fault="pp_off", **SMALL)
    assert outcome.report["sentence"] == "FAIL broken: pp (alone)"
    [found] = findings(outcome.report, "engaged", "pp2")
    assert found["message"] == "pp is not on: ranks 0 and 1 of 2 ranks hold all 35 parameters"


def test_a_schedule_that_is_ignored(ladder: Ladder) -> None:
    outcome = ladder({"pp": 2, "schedule": ["1f1b", "interleaved"]}, fault="schedule_off", **SMALL)
    assert outcome.report["sentence"] == "FAIL broken: schedule (alone)"
    [found] = findings(outcome.report, "engaged", "pp2+1f1b")
    assert "rank 1 worked in the order of gpipe: 1F0 1F1 1F2 1F3 1B0" in found["message"]
    [found] = findings(outcome.report, "engaged", "pp2+interleaved")
    assert "looped gpipe" in found["message"]


@pytest.mark.parametrize(
    ("axes", "matrix", "message"),
    [
        (
            {"pp": 8},
            {},
            "axes.pp[0]: 8 ranks of pp with 1 stage each need 8 stages, and recipe gpt can be cut into at most 4",
        ),
        (
            {"pp": 2},
            {"train": {"batch": 3}},
            "axes.pp[0]: 1 data ranks with 4 micro-batches each (1 of accum x 4 of pp) need 4 samples, and the "
            "smallest batch has 3",
        ),
    ],
)
def test_what_cannot_be_cut_is_refused(
    ladder: Ladder, axes: dict[str, Any], matrix: dict[str, Any], message: str
) -> None:
    options = {"layers": 2, "samples": 123}
    with pytest.raises(ConfigError) as refused:
        ladder(axes, options=options, **matrix)
    assert str(refused.value) == message


def test_a_recipe_that_cannot_be_cut_goes_without(ladder: Ladder) -> None:
    outcome = ladder({"pp": 2, "accum": 2}, recipe="moe", options={"width": 16, "samples": 62}, steps=1)
    reason = "pp needs a recipe that can be cut into stages; moe cannot"
    assert {"axes": {"pp": 2}, "reason": reason} in outcome.report["skipped"]
    assert {rung["id"] for rung in outcome.report["rungs"] if rung["role"] == "rung"} == {"accum2"}


def test_what_torch_computes_with_ddp_over_tensor_parallel_stages(ladder: Ladder) -> None:
    """The path that the worker does not take: see tests/upstream/test_pipelining.py."""
    combine = {"mode": "singles", "include": ["pp2+dp_replicate2+tp2"]}
    outcome = ladder({"pp": 2}, combine=combine, fault="pp_tp_ddp", **SMALL)
    assert outcome.report["sentence"] == "FAIL broken: pp x dp_replicate x tp (only together)"
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["step"]) == ("gradients", 0)
    assert "4 x the reference: not divided by the micro-batches of pp (4)" in entry["explanation"]
