"""Values in a wrong place, at a wrong time, or times a power of two: said where undoing it repairs, and only there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judging_cases import ALL, DP, ORDER, SHARD, TP, judged, of, sees
from tampering import Tamper
from tiny_world import data

from dist_checks.judging.verdict import Status


class Late(Tamper):
    """From step 2 on one rank holds what it held the step before, of one gradient, give or take ``noise``."""

    def __init__(self, noise: float = 0.0) -> None:
        self.noise = noise
        self.kept: dict[int, np.ndarray] = {}

    def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
        if name != "up.weight":
            return x
        now, self.kept[rank] = self.kept.get(rank), x
        return now * (1 + self.noise) if now is not None and step >= 2 and rank == 1 else x


def test_a_shard_that_is_a_step_late(tmp_path: Path) -> None:
    found = sees(tmp_path, "gradients", SHARD, Late())
    assert (found.step, found.tensor) == (2, "up.weight")
    assert found.explanation is not None
    assert found.explanation.sentence == (
        "1 gradient of 3 is stale in part: what rank 1 holds of it has the bits of the step before"
    )
    assert found.explanation.after < 1e-12 < found.explanation.before


def test_what_is_not_quite_that_of_the_step_before_is_not_explained_by_it(tmp_path: Path) -> None:
    assert sees(tmp_path, "gradients", SHARD, Late(noise=1e-3)).explanation is None


class Rolled(Tamper):
    """The rows of one gradient change places between the shards, and are ``scale`` x too large."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
        return self.scale * np.roll(x, len(x) // 2, axis=0) if name == "up.weight" else x


def test_shards_that_are_swapped(tmp_path: Path) -> None:
    found = sees(tmp_path, "gradients", SHARD, Rolled())
    assert found.explanation is not None
    assert found.explanation.sentence.startswith("1 gradient of 3 is made of the reference's values in other places")
    assert found.explanation.after < 1e-12 < found.explanation.before


@pytest.mark.parametrize("scale", [1 + 1e-6, 0.5])
def test_other_values_in_other_places_are_not_explained(tmp_path: Path, scale: float) -> None:
    assert sees(tmp_path, "gradients", SHARD, Rolled(scale)).explanation is None


class Scaled(Tamper):
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
        return x * self.factor


COUNTS = data(0)[2]
TOTAL = int(COUNTS[ORDER[0]].sum())
FIRST = int(COUNTS[ORDER[0][0::3]].sum())
"""Targets of the whole first batch, and of data rank 0 of three."""


@pytest.mark.parametrize(
    ("setting", "factor", "words"),
    [
        (TP, 2.0**-16, "2^-16, as of a loss scale that was divided out twice"),
        (TP, 2.0**12, "2^12, as of a loss scale that was not divided out"),
        (DP, TOTAL / (3 * FIRST), f"divided by the targets of data rank 0 ({FIRST}) x dp (3) where all have {TOTAL}"),
        (ALL, 2.0, "not divided by tp or accum (2)"),
    ],
)
def test_more_numbers_that_a_factor_may_come_from(tmp_path: Path, setting: Any, factor: float, words: str) -> None:
    found = sees(tmp_path, "gradients", setting, Scaled(factor))
    assert found.explanation is not None
    assert found.explanation.sentence.endswith(f" x the reference: {words}")
    assert found.explanation.after < 1e-12


def test_a_factor_near_a_power_of_two_is_none(tmp_path: Path) -> None:
    found = sees(tmp_path, "gradients", TP, Scaled(2.0**12 * 1.01))
    assert found.explanation is not None
    assert found.explanation.sentence == "every gradient is 4137 x the reference"


def test_a_weight_that_freezes_later(tmp_path: Path) -> None:
    class Frozen(Tamper):
        def moved(self, step: int, rank: int, name: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
            return before if step >= 2 and name == "down.weight" else after

    found = sees(tmp_path, "updates", TP, Frozen())
    assert (found.step, found.tensor) == (2, "down.weight")
    assert found.message == (
        "1 of 3 weights have a gradient and do not move at step 2, the first is down.weight; frozen since then: they "
        "moved at step 1"
    )


def test_a_healthy_run_is_not_called_frozen(tmp_path: Path) -> None:
    judgement, id = judged(tmp_path, TP, Tamper())
    assert all(finding.status is Status.PASS for finding in of(judgement, id, "updates"))
