"""Limits lie between rounding and the mildest fault, NaN is within none of them, and late steps are left alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dist_checks.judging.tolerance import EPS, MILDEST_FAULT, Rule, Tolerance, eps_of, narrowest, within, worse

EXACT = Tolerance(rule=Rule.REFERENCE, eps=EPS["float64"])


def allowed(
    tolerance: Tolerance, *, norm: float = 1.0, total: float = 1.0, spread: float = 0.0, step: int = 0
) -> float:
    one = tolerance.allowed(np.array([norm]), np.array([total]), np.array([spread]), np.array([step]))
    return float(one[0])


def test_float64_is_judged_far_from_rounding_and_from_faults() -> None:
    assert 1e-13 * 1e3 < allowed(EXACT) < MILDEST_FAULT / 1e5
    assert 1e-12 < allowed(EXACT, step=8) < MILDEST_FAULT / 1e3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_truth_rule_is_twice_the_spread_and_a_little(dtype: str) -> None:
    tolerance = Tolerance(rule=Rule.TRUTH, eps=EPS[dtype])
    spread = EPS[dtype]
    assert 2 * spread < allowed(tolerance, spread=spread) < 2.5 * spread
    assert allowed(tolerance, spread=0.0) > 0  # the single may be right by chance
    assert math.isnan(allowed(tolerance, spread=math.nan))


def test_in_float32_the_truth_rule_lies_between_rounding_and_the_mildest_fault() -> None:
    """Twice the distance of one run is no limit for another: of few elements, one may be near by chance."""
    tolerance = Tolerance(rule=Rule.TRUTH, eps=EPS["float32"])
    assert 50 * EPS["float32"] < allowed(tolerance, spread=EPS["float32"] / 2) < MILDEST_FAULT / 50


def test_a_gradient_that_should_be_zero_may_hold_rounding_of_the_others() -> None:
    for rule in Rule:
        tolerance = Tolerance(rule=rule, eps=EPS["float32"])
        assert 0 < allowed(tolerance, norm=0.0, total=1.0) < 1e-5
        assert allowed(tolerance, norm=0.0, total=0.0) == 0


def test_late_steps_are_for_the_curve() -> None:
    assert EXACT.judges(30)
    assert not EXACT.judges(60)
    narrow = Tolerance(rule=Rule.TRUTH, eps=EPS["bfloat16"])
    assert [step for step in range(10) if narrow.judges(step)] == [0, 1]
    assert narrow.judges(-1)


def test_the_narrowest_float_that_was_met_decides() -> None:
    assert narrowest("fp64", {}) == EPS["float64"]
    assert narrowest("fp64", {"narrowed": [{"module": "norm", "dtype": "torch.float32"}]}) == EPS["float32"]
    narrowed = [{"module": "a", "dtype": "bfloat16"}, {"module": "b", "dtype": "float32"}]
    assert narrowest("fp64", {"narrowed": narrowed}) == EPS["bfloat16"]
    assert allowed(Tolerance(rule=Rule.REFERENCE, eps=EPS["float32"])) == pytest.approx(1.3e-5, rel=0.1)
    assert eps_of("unheard_of") == EPS["float32"]


@pytest.mark.parametrize(
    ("observed", "limit", "expected"),
    [(0.0, 0.0, True), (1.0, 0.5, False), (math.nan, 1.0, False), (0.0, math.nan, False), (math.inf, 1.0, False)],
)
def test_within(observed: float, limit: float, expected: bool) -> None:
    assert within(observed, limit) is expected


def test_the_worst_of_several_is_nan_if_one_is() -> None:
    assert worse([0.5, 2.0]) == 2.0
    assert worse([]) == 0.0
    assert math.isnan(worse([0.0, math.nan, 1.0]))
    assert math.isnan(worse([math.nan, 0.0]))
