"""Who reads which sample when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_checks.worker import data


def test_each_epoch_has_every_sample_once_in_an_order_of_its_own() -> None:
    orders = [data.order(150, seed, epoch) for seed in (0, 1) for epoch in (0, 1, 2)]
    assert all(sorted(ids) == list(range(150)) for ids in orders)
    assert len({tuple(ids) for ids in orders}) == 6
    assert orders[0] == data.order(150, 0, 0)


def test_the_last_batch_of_an_epoch_is_smaller() -> None:
    steps = [data.read(step, 150, 31, seed=0) for step in range(8)]
    assert [len(step.ids) for step in steps] == [31, 31, 31, 31, 26, 31, 31, 31]
    assert [step.epoch for step in steps] == [0, 0, 0, 0, 0, 1, 1, 1]
    assert sorted(i for step in steps[:5] for i in step.ids) == list(range(150))


@given(length=st.integers(1, 70), data_size=st.integers(1, 9))
def test_data_ranks_share_a_batch_out(length: int, data_size: int) -> None:
    ids = list(range(100, 100 + length))
    parts = [data.part(ids, rank, data_size) for rank in range(data_size)]
    assert sorted(i for part in parts for i in part) == ids
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(length=st.integers(1, 70), count=st.integers(1, 9))
def test_micro_batches_keep_the_order(length: int, count: int) -> None:
    ids = list(range(length))
    pieces = data.micro_batches(ids, count)
    assert len(pieces) == count
    assert [i for piece in pieces for i in piece] == ids
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1


@given(
    samples=st.integers(1, 100),
    batch=st.integers(1, 40),
    data_size=st.integers(1, 5),
    accum=st.integers(1, 5),
)
def test_what_is_not_refused_gives_every_micro_batch_a_sample(
    samples: int, batch: int, data_size: int, accum: int
) -> None:
    pieces = [
        piece
        for step in range(data.steps_of_epoch(samples, batch))
        for rank in range(data_size)
        for piece in data.micro_batches(data.part(data.read(step, samples, batch, 0).ids, rank, data_size), accum)
    ]
    try:
        data.check(samples, batch, data_size, accum)
    except ValueError:
        assert not all(pieces)
    else:
        assert all(pieces)


def test_what_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"data ranks \(6\) x micro-batches \(5\) must be at most the smallest batch \(26 of 150"
    ):
        data.check(150, 31, 6, 5)
