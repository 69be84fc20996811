"""Extents tile, and say so only when they do."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_checks.extent import Box, Extent, Flat, chunk, shard, tile

SHAPES = st.lists(st.integers(1, 9), min_size=1, max_size=3)


@given(length=st.integers(0, 50), parts=st.integers(1, 9))
def test_chunks_follow_one_another(length: int, parts: int) -> None:
    at = 0
    for index in range(parts):
        start, size = chunk(length, parts, index)
        assert start == at
        at += size
    assert at == length


@given(shape=SHAPES, data=st.data())
def test_nested_cuts_tile_exactly_once(shape: list[int], data: st.DataObject) -> None:
    """Tensor parallel cuts a dim, FSDP cuts the same dim again: still every element once."""
    dims = st.integers(0, len(shape) - 1)
    outer, inner = (data.draw(dims), data.draw(st.integers(1, 4))), (data.draw(dims), data.draw(st.integers(1, 4)))
    extents = []
    for i in range(outer[1]):
        for j in range(inner[1]):
            box = shard(shape, [(*outer, i), (*inner, j)])
            extents.append(Extent(shape=tuple(shape), boxes=(box,)))
    assert tile(shape, extents).exact
    if extents[0].elements:
        missing = tile(shape, extents[1:])
        assert not missing.exact
        assert missing.covered == math.prod(shape) - extents[0].elements
        doubled = tile(shape, [*extents, extents[0]])
        assert not doubled.exact
        assert doubled.overlap == (0, len(extents))


@given(size=st.integers(1, 40), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_flat_ranges_tile(size: int, cuts: list[int]) -> None:
    edges = sorted({0, size, *(cut for cut in cuts if cut < size)})
    extents = [Extent(shape=(size,), flats=(Flat(a, b),), padding=1) for a, b in itertools.pairwise(edges)]
    assert tile((size,), extents).exact
    assert not tile((size,), [*extents, Extent(shape=(size,), flats=(Flat(0, 1),))]).exact


def test_an_overlap_that_hides_a_gap_is_seen() -> None:
    """The count alone is right here: 4 of 4 elements, but one twice and one never."""
    extents = [Extent.box((4,), (0,), (2,)), Extent.box((4,), (1,), (2,))]
    tiling = tile((4,), extents)
    assert tiling.covered == tiling.expected
    assert tiling.overlap == (0, 1)
    assert not tiling.exact


def test_a_part_outside_the_tensor_is_an_error() -> None:
    with pytest.raises(ValueError, match="outside a tensor of shape"):
        tile((4,), [Extent.box((4,), (3,), (2,))])
    with pytest.raises(ValueError, match="elements 2 to 5 of 4"):
        tile((4,), [Extent(shape=(4,), flats=(Flat(2, 5),))])


def test_boxes_and_flat_ranges_do_not_mix() -> None:
    with pytest.raises(ValueError, match="cannot be tiled together"):
        tile((4,), [Extent.box((4,), (0,), (2,)), Extent(shape=(4,), flats=(Flat(2, 4),))])


def test_a_scalar_is_one_element() -> None:
    assert Extent.full(()).elements == 1
    assert tile((), [Extent.full(())]).exact


@given(shape=SHAPES, partial=st.sampled_from([(), ("tp",), ("dp_shard", "tp")]), padding=st.integers(0, 3))
def test_json_gives_it_back(shape: list[int], partial: tuple[str, ...], padding: int) -> None:
    box = Extent.box(shape, [0] * len(shape), shape, partial)
    flat = Extent(shape=tuple(shape), flats=(Flat(0, 1),), padding=padding, partial=partial)
    assert Extent.from_json(box.to_json()) == box
    assert Extent.from_json(flat.to_json()) == flat


def test_empty_boxes_never_overlap() -> None:
    assert not Box((0,), (0,)).overlaps(Box((0,), (3,)))
