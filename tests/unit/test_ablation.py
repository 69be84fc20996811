"""One setting changed, with seeds: within noise is said so, and several changes at once are not told apart."""

from __future__ import annotations

from typing import Any

import pytest

from dist_checks.judging.ablation import ablations
from dist_checks.matrix import ConfigError, parse


def single(seed: int, loss: float, custom: str = "") -> dict[str, Any]:
    axes = {"custom": custom} if custom else {}
    return {
        "role": "single",
        "seed": seed,
        "axes": axes,
        "series": {"steps": list(range(20)), "loss": [9.0] * 18 + [loss] * 2},
    }


BASE = [single(0, 2.0), single(1, 2.2), single(2, 2.1)]
WARM = {"warm": {"same": False, "train": {"warmup": 9}, "options": {}, "env": {}}}


def verdict(*ends: float, custom: dict[str, Any] = WARM) -> dict[str, Any]:
    changed = [single(seed, loss, "warm") for seed, loss in enumerate(ends)]
    [found] = ablations([*BASE, *changed], custom)
    return found


def test_a_difference_beyond_the_noise() -> None:
    found = verdict(1.7, 1.91, 1.8)
    assert found["verdict"] == "lower"
    assert found["difference"] == pytest.approx(-0.2967, abs=1e-3)
    assert found["sentence"].startswith("custom.warm: loss 1.803 against 2.1, 0.3 lower over 3 seeds (noise 0.23")
    assert verdict(2.3, 2.51, 2.4)["verdict"] == "higher"


def test_within_the_noise() -> None:
    found = verdict(1.8, 2.4, 2.0)
    assert found["verdict"] == "within noise"
    assert "within noise" in found["sentence"]


def test_what_another_seed_would_change_as_well_is_within_the_noise() -> None:
    """The same little in every seed: real perhaps, and nothing that one run could tell."""
    assert verdict(1.999, 2.199, 2.099)["verdict"] == "within noise"


def test_one_seed_tells_nothing() -> None:
    found = verdict(1.0)
    assert found["verdict"] == "not decided"
    assert "repeat = 3" in found["sentence"]


def test_several_settings_at_once_are_not_told_apart() -> None:
    both = {"warm": {"same": False, "train": {"warmup": 9, "learning_rate": 1e-3}, "options": {}, "env": {}}}
    found = verdict(1.7, 1.91, 1.8, custom=both)
    assert found["verdict"] == "not decided"
    assert "train.warmup, train.learning_rate changed together" in found["sentence"]


def test_what_must_compute_the_same_is_no_ablation() -> None:
    assert ablations(BASE, {"warm": {**WARM["warm"], "same": True}}) == []


def test_repeat_is_a_number_of_seeds() -> None:
    assert parse({"repeat": 3}).seeds == (0, 1, 2)
    assert parse(parse({"repeat": 3})).seeds == (0, 1, 2)
    with pytest.raises(ConfigError, match="repeat: give either this or seeds"):
        parse({"repeat": 3, "seeds": [4, 5]})
