"""What is seen of weights that are not those of the single before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from judging_cases import DP, SHARD, judged, of, sees
from tampering import Tamper

from dist_checks.judging.verdict import Blamed, Status


def test_initial_weights_that_differ_everywhere_are_not_comparable(tmp_path: Path) -> None:
    class OtherSeed(Tamper):
        def initial(self, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x[::-1] * 1.5 + 0.1 if name == "down.weight" else x

    judgement, id = judged(tmp_path, DP, OtherSeed())
    (found,) = of(judgement, id, "initial_weights")
    assert (found.status, found.blames, found.tensor) == (Status.INCONCLUSIVE, Blamed.NOT_COMPARABLE, "down.weight")
    assert "Seed" in found.message
    # Nothing that follows from it is called a fault.
    assert all(finding.status is not Status.FAIL for finding in judgement.findings)
    assert judgement.verdict.status is Status.INCONCLUSIVE
    assert judgement.verdict.blamed is Blamed.NOT_COMPARABLE


def test_initial_weights_that_changed_places_are_a_fault(tmp_path: Path) -> None:
    class Swapped(Tamper):
        def initial(self, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return np.roll(x, 1, axis=0) if name == "down.weight" else x

    found = sees(tmp_path, "initial_weights", SHARD, Swapped())
    assert (found.step, found.tensor) == (-1, "down.weight")
    assert "has other places for the numbers of single" in found.message


def test_initial_weights_that_are_multiples_are_a_fault(tmp_path: Path) -> None:
    class Scaled(Tamper):
        def initial(self, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x * 1.5 if name == "down.weight" else x

    assert "is 1.5 x that of single (1 of 4 tensors differ)" in sees(tmp_path, "initial_weights", DP, Scaled()).message


def test_one_bit_of_an_initial_weight_is_a_fault_where_nothing_was_rounded(tmp_path: Path) -> None:
    class Flipped(Tamper):
        def initial(self, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            if name == "down.weight" and rank == 1:
                x = x.copy()
                x[-1, -1] = np.nextafter(x[-1, -1], np.inf)
            return x

    found = sees(tmp_path, "initial_weights", SHARD, Flipped())
    assert (found.step, found.tensor, found.observed) == (-1, "down.weight", 1.0)
    assert "other bits" in found.message


def test_other_bits_on_other_hosts_may_be_another_processor(tmp_path: Path) -> None:
    class Rounded(Tamper):
        def header(self, rank: int, header: dict[str, Any]) -> dict[str, Any]:
            return header | {"host": f"h{rank}"}

        def initial(self, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return np.nextafter(x, np.inf) if rank == 1 else x

    judgement, id = judged(tmp_path, SHARD, Rounded())
    assert [found.status for found in of(judgement, id, "initial_weights")] == [Status.PASS]
