"""How DeepSpeed cuts parameters over ranks: each element is in one partition, where its digest puts it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dist_checks.extent import Extent, Flat, tile
from dist_checks.probe.digest import digest, digest_many
from dist_checks.probe.extents import Part
from dist_checks.probe.zero import Segment, _Pieces, cut_of_group, cut_of_parameter
from dist_checks.trace import add

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@given(SIZES, st.integers(1, 5))
def test_a_group_that_is_cut_as_a_whole(elements: list[int], ranks: int) -> None:
    offsets = [0, *itertools.accumulate(elements)][:-1]
    partition = math.ceil(sum(elements) / ranks)
    held: dict[int, list[Extent]] = {}
    for rank in range(ranks):
        taken = 0
        for number, at, start, length in cut_of_group(list(zip(offsets, elements, strict=True)), partition, rank):
            assert at == taken
            assert offsets[number] + start == rank * partition + at
            taken += length
            held.setdefault(number, []).append(Extent(shape=(elements[number],), flats=(Flat(start, start + length),)))
        assert taken <= partition
    for number, size in enumerate(elements):
        assert tile((size,), held[number]).exact


@given(st.integers(1, 40), st.integers(1, 5))
def test_parameters_that_are_cut_one_by_one(elements: int, ranks: int) -> None:
    partition = math.ceil(elements / ranks)
    cuts = [cut_of_parameter(elements, partition, rank) for rank in range(ranks)]
    extents = [Extent(shape=(elements,), flats=(Flat(start, start + length),)) for start, length in cuts]
    assert tile((elements,), extents).exact


def test_the_digests_of_partitions_add_up_to_that_of_the_tensor() -> None:
    full = torch.randn(7, 11, dtype=torch.float64)
    cuts = [cut_of_parameter(77, 26, rank) for rank in range(3)]
    parts = [Part.flat(full.flatten()[start : start + length], (7, 11), start) for start, length in cuts]
    one, two, three = digest_many([part.local for part in parts], places=[part.place for part in parts])
    total, whole = add(add(one, two), three), digest(full)
    assert (total.fingerprint, total.elements, total.largest) == (whole.fingerprint, 77, whole.largest)
    assert total.sketch == pytest.approx(whole.sketch)


def test_a_segment_of_a_flat_partition() -> None:
    segment = Segment(name="w", shape=(4, 5), at=3, start=8, length=6, padding=2)
    part = segment.of(torch.arange(12.0))
    assert part.local.tolist() == [3, 4, 5, 6, 7, 8]
    assert part.extent == Extent(shape=(4, 5), flats=(Flat(8, 14),), padding=2)
    assert part.place == ((4, 5), 8)


def test_gradients_in_pieces() -> None:
    whole = torch.arange(12.0)
    pieces = _Pieces([whole[:6].view(2, 3), whole[6:10], whole[10:]])
    assert pieces.narrow(6, 4).data_ptr() == whole[6:].data_ptr(), "no copy"
    assert pieces.narrow(2, 3).tolist() == [2, 3, 4]
    assert pieces.narrow(4, 7).tolist() == [4, 5, 6, 7, 8, 9, 10]
