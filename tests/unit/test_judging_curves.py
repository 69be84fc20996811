"""Late curves: what three seeds tell, what one seed cannot, and how often right runs alarm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judging_cases import ACCUM, judged, of, sees
from tampering import HEALTHY, Tamper
from tiny_world import make_run, rung

from dist_checks.judging.checks.curve import weigh
from dist_checks.judging.judge import judge
from dist_checks.judging.late import Pair
from dist_checks.judging.verdict import Status

STEPS = range(100, 200)
SPREAD = 0.012
"""Of the late losses of seeds, as measured with the built-in recipe, relative to a loss of 2.4."""


def pair(seed: int, theirs: float, difference: float, rng: np.random.Generator) -> Pair:
    """Curves with the noise of batches, which both have, and some that each has of its own."""
    batches = rng.normal(0, 0.1, len(STEPS))
    own = rng.normal(0, 0.005, len(STEPS))
    reference = {step: theirs + float(batches[i]) for i, step in enumerate(STEPS)}
    mine = {step: reference[step] + difference + float(own[i]) for i, step in enumerate(STEPS)}
    return Pair(seed=seed, mine=mine, theirs=reference)


def drawn(rng: np.random.Generator, seeds: int, apart: float, shift: float = 0.0) -> list[Pair]:
    """Runs whose late losses part by ``apart`` (a standard deviation) from rounding alone, and all by ``shift``."""
    return [
        pair(seed, 2.4 + rng.normal(0, SPREAD * 2.4), shift + rng.normal(0, apart * 2.4), rng) for seed in range(seeds)
    ]


@pytest.mark.parametrize("apart", [1e-5, 0.007, SPREAD * 2**0.5])
def test_right_runs_do_not_fail_however_far_rounding_parts_them(apart: float) -> None:
    """Up to runs that are as far apart as two seeds are: no more can be due to rounding."""
    rng = np.random.default_rng(7)
    found = [weigh(pairs, pairs[0], narrow=True).status for pairs in (drawn(rng, 3, apart) for _ in range(500))]
    assert found.count(Status.FAIL) <= 1
    alone = [weigh(pairs, pairs[0], narrow=True).status for pairs in (drawn(rng, 1, apart) for _ in range(100))]
    assert Status.FAIL not in alone


def test_a_shift_of_all_seeds_is_found() -> None:
    rng = np.random.default_rng(8)
    runs = [drawn(rng, 5, 0.003, shift=0.1 * 2.4) for _ in range(100)]
    found = [weigh(pairs, pairs[0], narrow=True).status for pairs in runs]
    assert Status.PASS not in found
    assert found.count(Status.FAIL) > 90


def test_nan_is_a_failure() -> None:
    rng = np.random.default_rng(9)
    pairs = [*drawn(rng, 2, 0.001), pair(2, 2.4, float("nan"), rng)]
    assert weigh(pairs, pairs[0], narrow=True).status is Status.FAIL


class Worse(Tamper):
    """By 2 per target from the middle on; seeds of the tiny world are far apart."""

    def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
        return event | {"loss_sum": event["loss_sum"] + 2.0 * event["targets"] * (step >= 50)}


@pytest.mark.parametrize(("seeds", "status"), [((0, 1, 2), Status.FAIL), ((0,), Status.INCONCLUSIVE)])
def test_one_seed_in_narrow_numbers_is_not_enough(tmp_path: Path, seeds: tuple[int, ...], status: Status) -> None:
    settings: list[dict[str, Any]] = [{}, {"precision": "bf16"}, {"precision": "bf16", "accum": 3}]
    rungs = [rung(setting, steps=100, seed=seed) for setting in settings for seed in seeds]
    broken = [one.id for one in rungs if len(one.setting) == 2]
    judgement = judge(make_run(tmp_path / "run", rungs, {id: Worse() for id in broken}))
    found = [of(judgement, id, "curve")[0] for id in broken]
    assert {one.status for one in found} == {status}, found[0].message
    assert (f"of {len(seeds)} seeds" in found[0].message) == (len(seeds) == 3)
    healthy = judge(make_run(tmp_path / "healthy", rungs, {}))
    assert {of(healthy, id, "curve")[0].status for id in broken} == {Status.PASS}


def test_curve_needs_a_long_run_and_sees_a_shift_in_it(tmp_path: Path) -> None:
    class Worse(Tamper):
        def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
            return event | {"loss_sum": event["loss_sum"] * (1.02 if step >= 50 else 1)}

    assert sees(tmp_path, "curve", ACCUM, Worse(), steps=100).observed == pytest.approx(0.02, rel=0.1)
    judgement, id = judged(tmp_path / "healthy", ACCUM, HEALTHY, steps=100)
    assert of(judgement, id, "curve")[0].status is Status.PASS
