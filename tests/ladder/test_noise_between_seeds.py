"""One setting changed on one device, over seeds: within the noise between them, or not, and nothing else decides."""

from __future__ import annotations

from typing import Any

from ladders import Ladder

from dist_checks.diffs import between_seeds
from dist_checks.judging.verdict import ExitCode

SMALL = {"options": {"layers": 1, "width": 16, "samples": 62}, "steps": 10, "repeat": 3}


def ablation(ladder: Ladder, **changed: Any) -> Any:
    custom = {"changed": {"same": False, **changed}}
    return ladder({"custom": ["changed"]}, custom=custom, **SMALL)


def test_a_real_difference_ends_in_a_verdict_of_its_own(ladder: Ladder) -> None:
    outcome = ablation(ladder, train={"learning_rate": 3e-5})
    assert outcome.exit_code() is ExitCode.PASS
    [found] = outcome.report["ablations"]
    assert found["verdict"] == "higher"
    assert outcome.report["sentence"] == f"PASS {found['sentence']}"
    assert outcome.report["sentence"].startswith("PASS custom.changed: loss ")
    assert outcome.report["sentence"].count(" higher over 3 seeds (noise ") == 1


def test_a_little_more_weight_decay_is_within_the_noise(ladder: Ladder) -> None:
    outcome = ablation(ladder, train={"weight_decay": 0.11})
    assert outcome.exit_code() is ExitCode.PASS
    assert "within noise (" in outcome.report["sentence"]


def test_one_seed_decides_nothing(ladder: Ladder) -> None:
    custom = {"changed": {"same": False, "train": {"learning_rate": 3e-5}}}
    outcome = ladder({"custom": ["changed"]}, custom=custom, **SMALL | {"repeat": 1})
    assert outcome.exit_code() is ExitCode.INCONCLUSIVE
    assert outcome.report["sentence"].startswith("INCONCLUSIVE custom.changed: loss ")
    assert "one seed does not tell a difference from noise" in outcome.report["sentence"]


def test_two_runs_with_the_same_seeds(ladder: Ladder) -> None:
    base = ladder({}, single={"learn": 0, "overfit": 0}, **SMALL)
    noisy = ladder({}, single={"learn": 0, "overfit": 0}, train={"weight_decay": 0.11}, **SMALL)
    slow = ladder({}, single={"learn": 0, "overfit": 0}, train={"learning_rate": 3e-5}, **SMALL)
    assert between_seeds(base.folder, noisy.folder)["single"].verdict == "within noise"
    found = between_seeds(base.folder, slow.folder)["single"]
    assert (found.verdict, found.seeds) == ("higher", 3)
    assert between_seeds(base.folder, base.folder)["single"].difference == 0
