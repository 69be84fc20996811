"""ZeRO on the ladder: DeepSpeed's stages, read from their partitions, and torch's optimizer without redundancy."""

from __future__ import annotations

from typing import Any

import parts
import pytest
from ladders import Ladder, broken, findings

from dist_checks.judging.verdict import ExitCode

STAGES = [1, 2, 3]
SMALL = {"options": {"layers": 2}}


@pytest.fixture(autouse=True)
def deepspeed() -> None:
    parts.need("deepspeed")


def checks(report: dict[str, Any], rung: str) -> dict[str, str]:
    return dict(next(judged["checks"] for judged in report["rungs"] if judged["id"] == rung))


COMPARED = ("shards", "initial_weights", "gradients", "contributions", "grad_norm", "updates", "forward", "loss")


def healthy(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The rungs; those with zero were compared in everything."""
    rungs = {rung["id"]: rung for rung in report["rungs"]}
    for name, rung in rungs.items():
        if "zero" in name:
            said = {check: rung["checks"][check] for check in ("engaged", *COMPARED)}
            assert set(said.values()) == {"pass"}, (name, said)
    return rungs


def test_healthy_in_float32_and_with_micro_batches(ladder: Ladder) -> None:
    axes = {"dp_replicate": 3, "zero": [*STAGES, "redundancy"], "accum": 5}
    outcome = ladder(axes, steps=2, **SMALL)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    rungs = healthy(outcome.report)
    for stage in STAGES:
        for name in (f"dp_replicate3+zero{stage}", f"dp_replicate3+zero{stage}+accum5"):
            assert (rungs[name]["precision"], rungs[name]["reference"]) == ("fp32", "fp32")
    exact = rungs["dp_replicate3+zeroredundancy"]
    assert (exact["precision"], exact["reference"]) == ("fp64", "single")
    assert max(exact["series"]["gradient_distance"]) < 1e-11


def test_healthy_in_16_bits(ladder: Ladder) -> None:
    together = [f"dp_replicate2+zero{stage}+accum5+bf16" for stage in STAGES]
    scaled = [f"dp_replicate2+zero{stage}+fp16" for stage in STAGES]
    axes = {"dp_replicate": 2, "zero": STAGES, "accum": 5, "precision": ["bf16", "fp16"]}
    outcome = ladder(axes, steps=2, combine={"mode": "singles", "include": [*together, *scaled]}, **SMALL)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    rungs = healthy(outcome.report)
    assert {rungs[name]["reference"] for name in together} == {"bf16_params"}
    assert {rungs[name]["reference"] for name in scaled} == {"fp16_params"}


def test_the_steps_of_sgd_are_those_of_its_formula(ladder: Ladder) -> None:
    outcome = ladder({"dp_replicate": 2, "zero": [1, 3]}, train={"optimizer": "sgd", "learning_rate": 0.1}, **SMALL)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    told = [f["message"] for f in outcome.report["findings"] if f["check"] == "updates" and "zero" in f["rung"]]
    assert sum("SGD's formula" in message for message in told) == 2


def test_a_stage_below_the_one_that_was_asked_for(ladder: Ladder) -> None:
    outcome = ladder({"dp_replicate": 2, "zero": [*STAGES, "redundancy"]}, fault="zero_stage_lowered", **SMALL)
    assert outcome.exit_code() is ExitCode.FAIL
    assert outcome.report["sentence"] == "FAIL broken: zero (alone)"
    for stage in STAGES:
        [found] = findings(outcome.report, "engaged", f"dp_replicate2+zero{stage}")
        assert f"reports stage {stage - 1}" in found["message"]
        assert checks(outcome.report, f"dp_replicate2+zero{stage}")["gradients"] == "pass", "no number tells"
    [found] = findings(outcome.report, "engaged", "dp_replicate2+zeroredundancy")
    assert "held alike by several ranks" in found["message"]


def test_partitions_that_are_not_gathered(ladder: Ladder) -> None:
    outcome = ladder({"dp_replicate": 2, "zero": [1, 2]}, fault="partitions_not_gathered", **SMALL)
    assert outcome.exit_code() is ExitCode.FAIL
    assert outcome.report["sentence"] == "FAIL broken: zero (alone)"
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["step"]) == ("replicas", 0)


def test_partitions_that_are_not_gathered_under_a_model_in_16_bits(ladder: Ladder) -> None:
    """The optimizer's float32 partitions are right at first; the model's own copies have parted."""
    outcome = ladder({"dp_replicate": 2, "zero": 2, "precision": "bf16"}, fault="partitions_not_gathered", **SMALL)
    assert broken(outcome.report) == [["zero"]]
    [found] = findings(outcome.report, "replicas", "dp_replicate2+zero2+bf16")
    assert found["tensor"].endswith("/model")


def test_a_partition_that_is_a_sum(ladder: Ladder) -> None:
    outcome = ladder({"dp_replicate": 3, "zero": STAGES}, fault="partition_summed", **SMALL)
    assert outcome.exit_code() is ExitCode.FAIL
    assert outcome.report["sentence"] == "FAIL broken: zero (alone)"
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["step"]) == ("gradients", 0)
    # Whole tensors of rank 1 are three times too large; those that lie on another rank as well only in part.
    scales = {round(f["scale"], 3) for f in outcome.report["findings"] if f["check"] == "gradients" and f["scale"]}
    assert max(scales) <= 3.0 + 1e-3


def test_a_loss_scale_that_grows(ladder: Ladder) -> None:
    """A bug of DeepSpeed's own, which the worker avoids: no fault is planted but a setting of it."""
    axes = {"dp_replicate": 2, "zero": [2, 3], "precision": "fp16"}
    train = {"optimizer": "sgd", "learning_rate": 0.01, "clip": 0.0}
    outcome = ladder(axes, fault="loss_scale_grows", train=train, **SMALL)
    assert outcome.exit_code() is ExitCode.FAIL
    assert outcome.report["sentence"] == "FAIL broken: zero x precision (only together; in fp16)"
    [found] = findings(outcome.report, "grad_norm", "dp_replicate2+zero2+fp16")
    assert (found["step"], found["scale"]) == (2, pytest.approx(0.5, rel=1e-3))
    assert findings(outcome.report, "grad_norm", "dp_replicate2+zero3+fp16")[0]["step"] == 2
