"""What the checks see that hold a rung against the single."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judging_cases import ACCUM, ALL, DP, ORDER, SHARD, SP, TP, judged, of, sees
from tampering import Tamper

from dist_checks.extent import Extent
from dist_checks.judging.judge import judge
from dist_checks.judging.verdict import Blamed, Status
from dist_checks.trace import Kind


def test_forward_names_the_sample_and_the_block(tmp_path: Path) -> None:
    class Masked(Tamper):
        def output(self, step: int, rank: int, id: int, x: np.ndarray) -> np.ndarray:
            return x * 1.01 if id == ORDER[0][4] else x

    found = sees(tmp_path, "forward", TP, Masked())
    assert (found.step, found.tensor) == (0, "blocks.0")
    assert f"of sample {ORDER[0][4]}" in found.message
    assert found.scale == pytest.approx(1.01)


@pytest.mark.parametrize(
    ("setting", "factor", "words"),
    [
        (DP, 3.0, "every gradient is 3 x the reference: not divided by dp_replicate (3)"),
        (DP, 1 / 3, "divided by dp_replicate (3) once too often"),
        (TP, 2**0.5, "the square root of tp (2)"),
        (ACCUM, -1.0, "its sign is flipped"),
        (TP, 1.37, "every gradient is 1.37 x the reference"),
        (ALL, 1.5, "off by dp_replicate / tp or accum (3 / 2)"),
    ],
)
def test_gradients_explains_factors(tmp_path: Path, setting: Any, factor: float, words: str) -> None:
    class Scaled(Tamper):
        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x * factor

    found = sees(tmp_path, "gradients", setting, Scaled())
    assert found.step == 0
    assert found.scale == pytest.approx(factor)
    assert found.explanation is not None
    assert words in found.explanation.sentence
    assert found.explanation.before > 0.3
    assert found.explanation.after < 1e-12


def test_gradients_says_which_and_how_many(tmp_path: Path) -> None:
    class Some(Tamper):
        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x + (1e-3 * x[::-1] if name != "norm.weight" and step == 1 else 0)

    found = sees(tmp_path, "gradients", DP, Some())
    assert (found.step, found.tensor, found.ranks) == (1, "up.weight", (0, 1, 2))
    assert "so 2 of 3 at this step" in found.message
    assert "right at step 0" in found.message
    assert found.explanation is None  # nothing repairs it


def test_gradients_that_fail_in_two_ways_give_two_findings(tmp_path: Path) -> None:
    class Two(Tamper):
        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x * {"up.weight": 2, "down.weight": 1, "norm.weight": 0.5}[name]

    judgement, id = judged(tmp_path, TP, Two())
    found = of(judgement, id, "gradients")
    assert [finding.tensor for finding in found] == ["norm.weight", "up.weight"]
    assert [finding.scale for finding in found] == pytest.approx([0.5, 2.0])


def test_norm_gradients_that_are_never_added_up_over_tp(tmp_path: Path) -> None:
    """NVIDIA/Megatron-LM#1446: each tp rank has its part of the sequence, and takes it for the whole."""

    class NotSummed(Tamper):
        def extent(self, rank: int, kind: Kind, name: str, extent: Extent) -> Extent:
            return Extent(shape=extent.shape, boxes=extent.boxes)

    found = sees(tmp_path, "gradients", SP, NotSummed())
    assert found.tensor == "norm.weight"
    assert found.explanation is not None
    assert "held in 2 pieces by the tp ranks" in found.explanation.sentence
    assert found.explanation.after < 1e-12 < found.explanation.before
    (replica,) = of(judge(tmp_path / "run"), "tp2+sp", "replicas")
    assert replica.explanation == found.explanation


def test_gradients_that_come_a_step_late(tmp_path: Path) -> None:
    """deepspeedai/DeepSpeed PR#7965: a buffer is used before what was asked for has arrived."""

    class Late(Tamper):
        def __init__(self) -> None:
            self.before: dict[tuple[int, str], np.ndarray] = {}

        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            before = self.before.get((rank, name), x)
            self.before[rank, name] = x.copy()
            return before if step == 1 else x

    found = sees(tmp_path, "gradients", TP, Late())
    assert found.step == 1
    assert found.explanation is not None
    assert found.explanation.sentence == "every gradient is that of the step before: a step late"
    assert found.explanation.after < 1e-12 < found.explanation.before


def test_gradients_that_are_never_reduced_over_data_ranks(tmp_path: Path) -> None:
    """karpathy/build-nanogpt PR#30, modelscope/FunASR PR#3472."""

    class Unreduced(Tamper):
        def reduced(self, rank: int, name: str, own: np.ndarray, reduced: np.ndarray) -> np.ndarray:
            return own

    found = sees(tmp_path, "replicas", DP, Unreduced())
    assert found.step == 0
    assert found.explanation is not None
    assert "never reduced over dp_replicate" in found.explanation.sentence


@pytest.mark.parametrize(
    ("setting", "weight", "words"),
    [
        (DP, lambda part, micro, id: float(part != 1), "the samples of data rank 1 entered with weight 0.000"),
        (DP, lambda part, micro, id: 3.0, "every sample entered with weight 3.000"),
        (
            ACCUM,
            lambda part, micro, id: [1.1, 0.9, 1.0][micro],
            "micro-batch 0 of data rank 0 entered with weight 1.100",
        ),
        (
            ACCUM,
            lambda part, micro, id: 2.0 if id == ORDER[0][5] else 1.0,
            f"sample {ORDER[0][5]} entered with weight 2",
        ),
    ],
    ids=["a rank lost", "all", "mean of means", "one twice"],
)
def test_contributions(tmp_path: Path, setting: Any, weight: Callable[..., float], words: str) -> None:
    class Weighted(Tamper):
        def weight_of(self, step: int, data_rank: int, micro: int, id: int) -> float:
            return weight(data_rank, micro, id)

    found = sees(tmp_path, "contributions", setting, Weighted())
    assert words in found.message
    assert found.explanation is not None
    assert found.explanation.after < 1e-10 < found.explanation.before


def test_contributions_skips_what_is_no_matter_of_samples(tmp_path: Path) -> None:
    class Wrong(Tamper):
        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return np.roll(x, 1, axis=0)

    judgement, id = judged(tmp_path, TP, Wrong())
    (found,) = of(judgement, id, "contributions")
    assert found.status is Status.SKIP
    assert "not which samples" in found.message


def test_additive_blames_the_recipe(tmp_path: Path) -> None:
    class BatchLoss(Tamper):
        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x * 1.16

    judgement, _ = judged(tmp_path, {}, BatchLoss())
    (found,) = of(judgement, "single", "additive")
    assert (found.status, found.blames) == (Status.FAIL, Blamed.RECIPE)
    assert judgement.verdict.blamed is Blamed.RECIPE


def test_a_rank_that_clips_by_its_own_norm(tmp_path: Path) -> None:
    """RLinf/RLinf PR#1558."""

    class LocalNorm(Tamper):
        def norm_used(self, step: int, rank: int, norm: float) -> float:
            return norm * (0.7 + 0.1 * rank)

    found = sees(tmp_path, "grad_norm", SHARD, LocalNorm())
    assert found.step == 0
    assert found.ranks == (0, 1)
    assert "each in its own way" in found.message


def test_clipping_before_unscaling(tmp_path: Path) -> None:
    """Lightning-AI/pytorch-lightning#9599: the applied norm is the limit over the loss scale."""

    class Early(Tamper):
        def applied(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x / 65536

    found = sees(tmp_path, "grad_norm", {"precision": "fp16"}, Early())
    assert found.scale == pytest.approx(1 / 65536)
    judgement = judge(tmp_path / "run")
    assert judgement.verdict.sentence == "FAIL broken: precision (alone; in fp16)"
    assert judgement.verdict.blamed is Blamed.AXIS


def test_one_rank_that_prints_a_local_norm_is_innocent(tmp_path: Path) -> None:
    """pytorch/torchtitan#766: a sharded norm's local value is printed, clipping is right."""

    class Prints(Tamper):
        def norm_printed(self, step: int, rank: int, norm: float) -> float:
            return norm * (0.6 + 0.1 * rank)

    judgement, id = judged(tmp_path, SHARD, Prints())
    (found,) = of(judgement, id, "grad_norm")
    assert found.status is Status.PASS
    assert "not the norm that it used" in found.message


def test_one_wrong_norm_on_all_ranks_is_not(tmp_path: Path) -> None:
    class Prints(Tamper):
        def norm_printed(self, step: int, rank: int, norm: float) -> float:
            return norm * 2

    assert "only what is printed is wrong" in sees(tmp_path, "grad_norm", SHARD, Prints()).message


def test_updates_sees_a_weight_that_stands_still(tmp_path: Path) -> None:
    """huggingface/accelerate#3256: an optimizer with stale parameters."""

    class Stale(Tamper):
        def moved(self, step: int, rank: int, name: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
            return before if name == "up.weight" else after

    found = sees(tmp_path, "updates", SHARD, Stale(), optimizer="AdamW")
    assert (found.step, found.tensor) == (0, "up.weight")
    assert "do not move" in found.message


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_updates_sees_a_step_that_is_too_long(tmp_path: Path, optimizer: str) -> None:
    class Long(Tamper):
        def moved(self, step: int, rank: int, name: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
            return before + 1.01 * (after - before) if name == "down.weight" and step == 1 else after

    found = sees(tmp_path, "updates", DP, Long(), optimizer=optimizer)
    assert (found.step, found.tensor) == (1, "down.weight")
    assert found.scale == pytest.approx(1.01)


def test_updates_judges_the_formula_of_a_single_alone(tmp_path: Path) -> None:
    class NoDecay(Tamper):
        def moved(self, step: int, rank: int, name: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
            return after + 0.05 * 0.1 * before

    found = sees(tmp_path, "updates", {}, NoDecay())
    assert "SGD's formula" in found.message


def test_schedule(tmp_path: Path) -> None:
    class Late(Tamper):
        def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
            return event | {"learning_rates": [0.05 if step < 2 else 0.025]}

    found = sees(tmp_path, "schedule", ACCUM, Late())
    assert (found.step, found.scale) == (2, 0.5)


def test_steps_that_one_side_skipped_are_not_compared(tmp_path: Path) -> None:
    class Skips(Tamper):
        def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
            return event | {"skipped": step == 1}

        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x * (np.inf if step == 1 else 1)

        def moved(self, step: int, rank: int, name: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
            return before if step == 1 else after

        def applied(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return np.zeros_like(x) if step == 1 else x

    with np.errstate(invalid="ignore"):
        judgement, id = judged(tmp_path, {"tp": 2, "precision": "fp16"}, Skips(), optimizer="AdamW")
    (found,) = of(judgement, id, "schedule")
    assert (found.status, found.step) == (Status.INCONCLUSIVE, 1)
    assert all(finding.status is not Status.FAIL for finding in judgement.findings), judgement.findings
