"""Digests of full tensors come out the same however the tensor is cut, copied, or split into partial sums."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tampering import Tamper
from tiny_world import SHAPES, World, digest, rung

from dist_checks.extent import Extent
from dist_checks.judging.comparison import compare
from dist_checks.judging.logical import Full, Key
from dist_checks.judging.reading import read
from dist_checks.judging.seen import Seen
from dist_checks.judging.tolerance import Rule, Tolerance
from dist_checks.trace import BEFORE, NO_ITEM, Entry, Kind, Writer, events_path

SETTINGS = [
    {"tp": 2},
    {"dp_replicate": 3},
    {"dp_shard": 5},  # some ranks hold nothing of a tensor
    {"tp": 2, "dp_shard": 3},
    {"dp_replicate": 2, "dp_shard": 2, "tp": 2, "sp": True},
]


def seen(folder: Path, setting: Mapping[str, Any] | None = None, tamper: Tamper | None = None) -> Seen:
    own = rung(setting, steps=1)
    World(own, folder, tamper or Tamper()).run()
    return Seen(own, read(folder, own.layout.world_size))


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_shards_replicas_and_partial_sums_add_up(tmp_path: Path, setting: Mapping[str, Any]) -> None:
    one, many = seen(tmp_path / "one"), seen(tmp_path / "many", setting)
    for kind in (Kind.WEIGHT, Kind.GRADIENT, Kind.APPLIED, Kind.STATE, Kind.OUTPUT):
        a, b = one.full(kind), many.full(kind)
        assert a.names == b.names
        assert len(a) == len(b)
        assert b.complete.all()
        rows = [b.rows[a.key(row)] for row in range(len(a))]
        assert np.allclose(a.sketch, b.sketch[rows], atol=1e-14)
        assert (a.elements == np.where(b.partial[rows], b.elements[rows] // 2, b.elements[rows])).all()
        exact = ~b.partial[rows]
        assert np.allclose(a.norm[exact], b.norm[rows][exact], atol=1e-14)
        if kind is Kind.WEIGHT:
            before = a.step == BEFORE
            assert (a.fingerprint[before] == b.fingerprint[rows][before]).all()


def test_partial_sums_are_known_as_such(tmp_path: Path) -> None:
    found = seen(tmp_path, {"tp": 2, "sp": True}).full(Kind.GRADIENT)
    assert {found.names[found.tensor[row]] for row in np.flatnonzero(found.partial)} == {"norm.weight"}
    row = found.rows[Key("norm.weight", 0, NO_ITEM)]
    assert found.sum_squares[row] == pytest.approx(np.square(found.sketch[row]).sum())


@pytest.mark.parametrize("rank", [0, 1])
def test_a_lost_shard_or_piece_makes_a_tensor_incomplete(tmp_path: Path, rank: int) -> None:
    own = rung({"tp": 2, "sp": True}, steps=1)
    World(own, tmp_path).run()
    events_path(tmp_path, rank).unlink()
    found = Seen(own, read(tmp_path, 2)).full(Kind.GRADIENT)
    assert not found.complete.any()


def test_ranks_that_disagree_about_the_shape(tmp_path: Path) -> None:
    x = np.ones((4, 2))
    for rank in range(2):
        writer = Writer(tmp_path, rank, {"coordinates": {}})
        extent = Extent.full(x.shape if rank else x.T.shape)
        writer.digest(0, Entry(Kind.WEIGHT, "w", "float64", extent), digest(x if rank else x.T, extent))
        writer.close()
    found = Seen(rung({"dp_replicate": 2}), read(tmp_path, 2)).full(Kind.WEIGHT)
    assert not found.complete.any()
    assert "disagree about its shape: (2, 4), (4, 2)" in str(found.tiling[0])


def test_an_entry_that_changes_between_steps(tmp_path: Path) -> None:
    x = np.arange(8.0)
    for rank in range(2):
        writer = Writer(tmp_path, rank, {"coordinates": {}})
        whole, half = Extent.full((8,)), Extent.box((8,), (4 * rank,), (4,))
        writer.digest(0, Entry(Kind.WEIGHT, "w", "float64", whole), digest(x, whole))
        writer.digest(1, Entry(Kind.WEIGHT, "w", "float64", half), digest(x, half))
        writer.close()
    found = Seen(rung({"dp_shard": 2}), read(tmp_path, 2)).full(Kind.WEIGHT)
    assert found.complete.all()
    assert np.allclose(found.sketch[0], found.sketch[1])
    assert found.fingerprint[0] == found.fingerprint[1]


def test_a_comparison_finds_scale_and_direction(tmp_path: Path) -> None:
    class Off(Tamper):
        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return {"norm.weight": x, "up.weight": 2 * x, "down.weight": x[::-1]}[name]

    yard = seen(tmp_path / "yard").full(Kind.GRADIENT)
    mine = seen(tmp_path / "mine", {"tp": 2}, Off()).full(Kind.GRADIENT)
    found = compare(mine, yard, Tolerance(rule=Rule.REFERENCE, eps=2**-52))
    by_name = {key.name: row for row, key in enumerate(found.keys)}
    assert found.ok.tolist() == [key.name == "norm.weight" for key in found.keys]
    assert found.scale[by_name["up.weight"]] == pytest.approx(2.0)
    assert found.cosine[by_name["up.weight"]] == pytest.approx(1.0)
    assert found.observed[by_name["up.weight"]] == pytest.approx(1.0, rel=0.3)  # an estimate
    assert found.cosine[by_name["down.weight"]] < 0.9


def test_nan_fails_whatever_it_is_compared_with(tmp_path: Path) -> None:
    class Nan(Tamper):
        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            x = x.copy()
            x.flat[0] = np.nan
            return x

    with np.errstate(invalid="ignore"):
        nan = seen(tmp_path / "nan", {"tp": 2}, Nan()).full(Kind.GRADIENT)
    healthy = seen(tmp_path / "healthy").full(Kind.GRADIENT)
    for mine, yard in ((nan, healthy), (healthy, nan), (nan, nan)):
        for rule in Rule:
            found = compare(mine, yard, Tolerance(rule=rule, eps=2**-7), single=healthy)
            assert len(found) == len(SHAPES)
            assert not found.ok.any()


def test_without_a_single_the_truth_rule_lets_nothing_pass(tmp_path: Path) -> None:
    one = seen(tmp_path).full(Kind.GRADIENT)
    assert not compare(one, one, Tolerance(rule=Rule.TRUTH, eps=2**-7)).ok.any()
    assert compare(one, one, Tolerance(rule=Rule.TRUTH, eps=2**-7), single=one).ok.all()


def test_nothing_recorded_is_an_empty_table(tmp_path: Path) -> None:
    found = Seen(rung(), read(tmp_path, 1)).full(Kind.GRADIENT)
    assert isinstance(found, Full)
    assert len(found) == 0
    assert found.rows == {}
