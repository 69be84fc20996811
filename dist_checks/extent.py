"""Which part of a full tensor a rank holds: arithmetic on boxes and flat ranges, without any tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Box:
    """The elements ``offset[d] <= i[d] < offset[d] + length[d]`` of a tensor; for a 0-d tensor, its one element."""

    offset: tuple[int, ...]
    length: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.length)

    def overlaps(self, other: Box) -> bool:
        """True where both hold at least one common element."""
        if not self.elements or not other.elements:
            return False
        return all(
            a < b + m and b < a + n
            for a, n, b, m in zip(self.offset, self.length, other.offset, other.length, strict=True)
        )

    def inside(self, shape: Sequence[int]) -> bool:
        return all(o >= 0 and o + n <= s for o, n, s in zip(self.offset, self.length, shape, strict=True))


@dataclass(frozen=True, slots=True, order=True)
class Flat:
    """The elements ``start <= i < stop`` of a tensor in row-major order: what ZeRO and FSDP1 hold."""

    start: int
    stop: int

    @property
    def elements(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """The part of the full tensor of ``shape`` that a rank holds.

    ``boxes`` or ``flats`` say which elements (never both), ``padding`` counts elements beyond the tensor that the rank
    keeps to make shards equal, ``partial`` names the axes over whose ranks the values still have to be added up.
    """

    shape: tuple[int, ...]
    boxes: tuple[Box, ...] = ()
    flats: tuple[Flat, ...] = ()
    padding: int = 0
    partial: tuple[str, ...] = ()

    @classmethod
    def full(cls, shape: Sequence[int], partial: Iterable[str] = ()) -> Extent:
        shape = tuple(shape)
        return cls(shape=shape, boxes=(Box((0,) * len(shape), shape),), partial=tuple(partial))

    @classmethod
    def box(
        cls, shape: Sequence[int], offset: Sequence[int], length: Sequence[int], partial: Iterable[str] = ()
    ) -> Extent:
        return cls(shape=tuple(shape), boxes=(Box(tuple(offset), tuple(length)),), partial=tuple(partial))

    @property
    def elements(self) -> int:
        """Number of elements of the full tensor that are held here; padding is not counted."""
        return sum(box.elements for box in self.boxes) + sum(flat.elements for flat in self.flats)

    @property
    def is_full(self) -> bool:
        return self.elements == math.prod(self.shape)

    @property
    def region(self) -> tuple[tuple[Box, ...], tuple[Flat, ...]]:
        """What two replicas have in common: the same elements, whatever their padding."""
        return self.boxes, self.flats

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"shape": list(self.shape)}
        if self.boxes:
            out["boxes"] = [[list(b.offset), list(b.length)] for b in self.boxes]
        if self.flats:
            out["flats"] = [[f.start, f.stop] for f in self.flats]
        if self.padding:
            out["padding"] = self.padding
        if self.partial:
            out["partial"] = list(self.partial)
        return out

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Extent:
        """Raises KeyError, TypeError or ValueError on anything but what :meth:`to_json` gives."""
        return cls(
            shape=tuple(int(n) for n in data["shape"]),
            boxes=tuple(Box(tuple(map(int, o)), tuple(map(int, n))) for o, n in data.get("boxes", ())),
            flats=tuple(Flat(int(a), int(b)) for a, b in data.get("flats", ())),
            padding=int(data.get("padding", 0)),
            partial=tuple(str(axis) for axis in data.get("partial", ())),
        )


def chunk(length: int, parts: int, index: int) -> tuple[int, int]:
    """(start, length) of piece ``index`` when ``length`` is cut as :func:`torch.chunk` cuts it.

    All pieces have ``ceil(length / parts)`` elements, but for the last ones, which may be shorter or empty.
    """
    size = -(-length // parts)
    start = min(index * size, length)
    return start, min(size, length - start)


def shard(shape: Sequence[int], cuts: Iterable[tuple[int, int, int]]) -> Box:
    """The box that is left after ``cuts`` of (dim, parts, index), the outermost cut first.

    A dim may be cut more than once: tensor parallel cuts the rows, FSDP cuts what is left of them.
    """
    offset, length = [0] * len(shape), list(shape)
    for dim, parts, index in cuts:
        start, length[dim] = chunk(length[dim], parts, index)
        offset[dim] += start
    return Box(tuple(offset), tuple(length))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """Whether regions cover a tensor exactly once: the elements counted, and a pair that overlaps."""

    expected: int
    covered: int
    overlap: tuple[int, int] | None

    @property
    def exact(self) -> bool:
        return self.overlap is None and self.covered == self.expected


def tile(shape: Sequence[int], extents: Sequence[Extent]) -> Tiling:
    """Do distinct ``extents`` cover a tensor of ``shape`` exactly once? Indices in the result are those of ``extents``.

    Raises ValueError where boxes and flat ranges of one tensor are mixed, or a part lies outside the tensor.
    """
    expected = math.prod(shape)
    boxes = [(box, i) for i, extent in enumerate(extents) for box in extent.boxes]
    flats = sorted((flat.start, flat.stop, i) for i, extent in enumerate(extents) for flat in extent.flats)
    if boxes and flats:
        raise ValueError("boxes and flat ranges of one tensor cannot be tiled together")
    for box, i in boxes:
        if not box.inside(shape):
            raise ValueError(f"extent {i} holds {box}, outside a tensor of shape {tuple(shape)}")
    for start, stop, i in flats:
        if not 0 <= start <= stop <= expected:
            raise ValueError(f"extent {i} holds elements {start} to {stop} of {expected}")
    covered = sum(extent.elements for extent in extents)
    overlap = next(((i, j) for (_, b, i), (a, _, j) in itertools.pairwise(flats) if a < b), None)
    if boxes and overlap is None:
        overlap = _first_overlap(boxes)
    return Tiling(expected=expected, covered=covered, overlap=overlap)


def _first_overlap(boxes: list[tuple[Box, int]]) -> tuple[int, int] | None:
    """Sweep along the first dim, so that shards of a thousand ranks are compared with their neighbours only."""
    boxes = sorted((box, i) for box, i in boxes if box.elements)
    active: list[tuple[Box, int]] = []
    for box, i in boxes:
        if box.offset:
            active = [(b, j) for b, j in active if b.offset[0] + b.length[0] > box.offset[0]]
        for other, j in active:
            if box.overlaps(other):
                return j, i
        active.append((box, i))
    return None
