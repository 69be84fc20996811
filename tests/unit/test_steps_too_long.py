"""Steps that are too long, and steps that lead uphill, by weights and gradients that are made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_world import rung

from dist_checks.judging import slopes
from dist_checks.judging.checks.alone import update_ratio
from dist_checks.judging.logical import Full
from dist_checks.judging.reading import RECORD, Digests, RankTrace, Trace
from dist_checks.judging.seen import Seen
from dist_checks.judging.triage import SYMPTOMS
from dist_checks.judging.verdict import Finding, Status
from dist_checks.judging.view import RungView
from dist_checks.trace import BEFORE, BUCKETS, Kind


def made(values: dict[str, Sequence[float]], first: int) -> Full:
    """Tensors whose sketch is one number: of each name a row for each step from ``first`` on."""
    rows = [(at, first + step, value) for at, each in enumerate(values.values()) for step, value in enumerate(each)]
    count = len(rows)
    sketch = np.zeros((count, BUCKETS))
    sketch[:, 0] = [value for _, _, value in rows]
    return Full(
        names=tuple(values),
        tensor=np.array([at for at, _, _ in rows]),
        step=np.array([BEFORE if step < 0 else step for _, step, _ in rows]),
        item=np.full(count, -1),
        fingerprint=np.arange(count, dtype=np.uint64),
        elements=np.ones(count, np.int64),
        nonfinite=np.zeros(count, np.int64),
        sum_squares=np.square(sketch).sum(1),
        sketch=sketch,
        partial=np.zeros(count, bool),
        tiling=("",) * count,
        complete=np.ones(count, bool),
        dtypes=("float64",) * len(values),
    )


def seen(weights: dict[str, Sequence[float]], gradients: dict[str, Sequence[float]] | None = None) -> Seen:
    rank = RankTrace(
        rank=0,
        header={"world_size": 1, "parameters": [{"name": name, "shape": [4, 4]} for name in weights]},
        entries={},
        steps={},
        evidence={},
        digests=Digests.of(Path("none"), np.zeros(0, RECORD)),
        ended=True,
        problems=(),
    )
    of = {Kind.WEIGHT: made(weights, BEFORE), Kind.GRADIENT: made(gradients or {}, 0)}

    class Made(Seen):
        def full(self, kind: Kind) -> Full:
            return of[kind]

    return Made(rung(), Trace(Path("none"), 1, (rank,)))


def asked(**weights: Sequence[float]) -> Finding:
    [found] = update_ratio.check(RungView(own=seen(weights), exit=None))
    return found


def test_steps_that_are_longer_than_the_weights_were() -> None:
    found = asked(one=[0.02, 0.2, 0.6, 1.2], two=[0.02, 0.2, -0.5, 0.4], three=[1.0, 1.01, 1.02, 1.01])
    assert (found.status, found.symptom) == (Status.FAIL, "updates_large"), found.message
    assert found.suspects[0] == SYMPTOMS["updates_large"].suspects["rate"]
    assert found.message.startswith("a step moves half of the 3 matrices by ")


def test_matrices_that_start_at_zero_or_are_in_the_minority_may_grow() -> None:
    grown, calm = [0.0, 0.1, 0.3, 0.6], [1.0, 1.01, 1.02, 1.01]
    assert asked(one=grown, two=grown, three=grown, four=calm).status is Status.PASS
    assert asked(one=[1e-4, 0.1, 0.3, 0.6], two=calm, three=calm).status is Status.PASS


@pytest.mark.parametrize(
    ("told", "rise", "wrong"),
    [
        (-0.1, 0.1, True),  # as much as it should fall
        (0.1, 0.1, True),
        (-0.1, -0.1, False),
        (-45.0, 0.5, False),  # far too long a step
    ],
)
def test_uphill(monkeypatch: pytest.MonkeyPatch, told: float, rise: float, wrong: bool) -> None:
    weights = [0.1 * step for step in range(13)]
    own = seen({"w": weights}, {"w": [told / 0.1] * 12})
    monkeypatch.setattr(slopes, "losses", lambda seen: {s: SimpleNamespace(mean=5 + rise * s) for s in range(12)})
    assert slopes.foretold(own)[3] == pytest.approx(told)
    assert slopes.wrong_way(own) is wrong


def test_uphill_takes_a_few_steps_to_tell() -> None:
    assert slopes.wrong_way(seen({"w": [0.0, 0.1]}, {"w": [1.0]})) is None
