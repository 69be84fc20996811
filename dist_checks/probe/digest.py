"""The digest: a few numbers about a tensor that add up over its parts, however it is cut and wherever the parts are.

A full tensor is read as a matrix: its fewest last dims that have at least 256 elements together are one *row*. A row
is cut into *segments* of 4096 elements, the last one shorter. One segment of one row is a *block*; an element is known
by its block b and its column j inside the block. With h(b) a hash of the block's number:

fingerprint = sum over b, k of  odd(h(b)) * weight(k) * (u + (u >> 33))  mod 2**64, where u is the k-th 8-byte word of
    the block's bytes as a signed integer and weight(k) is odd. Without u >> 33 an even number of flipped top bits would
    cancel, as odd * 2**63 is the same for every odd number; and it must be added, not xor-ed, so that a word that is
    cut (its other elements read as zeros) is the sum of its parts. Parts of a tensor add up exactly.

sketch[(j mod lanes + lanes * d) mod 64] += sign(h(b)) * sign((d + j) mod 4096) * x[b, j], where d = row + segment of
    the block and lanes is 67, or 71 where 67 divides the width of short rows, side by side in a block. Elements
    that follow each other along a row, down a column, from block to block or from one short row to the next all go
    through the buckets. The sketch is linear, and the length of the difference of two sketches estimates the length of
    the difference of the tensors, with a spread near 1 / sqrt(2 * 64) (count sketch: Charikar, Chen and Farach-Colton,
    2002).

statistics: number of elements, zeros and non-finite values, sum of squares and largest magnitude of the finite ones.
    Non-finite values count as 0 in the sketch too. Sums are float64; float32 inside a block for floats of 1 or 2 bytes,
    so that parts add up to about 1e-15 and 1e-7 of the length of the tensor.

A complex tensor is read as real and imaginary parts (two elements each), a bool as 0 and 1.

Everything here runs on every rank alone: it calls no collective, draws no random number, records nothing for autograd
and waits for an accelerator once a call, once more where non-finite values are found.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dist_checks.probe._blocks import Shape, pieces
from dist_checks.probe._sums import Dtypes, sums
from dist_checks.probe._tables import chunk, most_blocks, scratch
from dist_checks.trace import BUCKETS, Values, add

__all__ = ["Place", "digest", "digest_flat", "digest_many"]

Place = tuple[Sequence[int], Sequence[int] | int] | None
"""Where a part lies in its full tensor: (shape, offset of a box) or (shape, start of a flat range); None: it is all."""

NOTHING = Values(0, 0, 0, 0, 0.0, 0.0, (0.0,) * BUCKETS)

# ------------------------------------------------------------------------------------------------ the three ways in


def digest(x: Tensor, *, shape: Sequence[int] | None = None, offset: Sequence[int] | None = None) -> Values:
    """Digest of x, the box at `offset` of a full tensor of `shape`; by default x is the whole tensor.

    ValueError where x does not lie inside the full tensor, is not dense, or is a DTensor.
    """
    if shape is None and offset is None:
        return _values([_box_part(x, None)])[0]
    return _values([_box_part(x, (x.shape if shape is None else shape, offset or [0] * x.dim()))])[0]


def digest_flat(x: Tensor, *, shape: Sequence[int], start: int) -> Values:
    """Digest of x [n], the elements start to start + n in row-major order of a full tensor of `shape`."""
    return _values([_flat_part(x, shape, start)])[0]


def digest_many(xs: Sequence[Tensor], *, places: Sequence[Place] | None = None) -> list[Values]:
    """Digests of many tensors, in their order; small ones of one dtype, shape and place share a pass.

    `places[i]` is (shape, offset) of the box xs[i] in its full tensor, (shape, start) of a flat range, None where xs[i]
    is the whole tensor.
    """
    if places is None:
        places = [None] * len(xs)
    return _values([_placed(x, place) for x, place in zip(xs, places, strict=True)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of a full tensor, as real numbers."""

    x: Tensor
    shape: Shape  # of the full tensor
    place: Shape | int  # the offset of a box, or where a flat range starts


def _placed(x: Tensor, place: Place) -> _Part:
    if place is not None and isinstance(place[1], int):
        return _flat_part(x, place[0], place[1])
    return _box_part(x, None if place is None else (place[0], place[1]))  # type: ignore[arg-type]


def _flat_part(x: Tensor, shape: Sequence[int], start: int) -> _Part:
    if x.dim() != 1 or start < 0 or start + x.numel() > math.prod(shape):
        raise ValueError(f"{list(x.shape)} elements at {start} are no flat range of a tensor of shape {list(shape)}")
    if x.is_complex():
        return _Part(x=_real(x).flatten(), shape=(*shape, 2), place=2 * start)
    return _Part(x=_real(x), shape=tuple(shape), place=start)


def _box_part(x: Tensor, box: tuple[Sequence[int], Sequence[int]] | None) -> _Part:
    if box is None:
        shape, offset = tuple(x.shape), (0,) * x.dim()
    else:
        shape, offset = tuple(box[0]), tuple(box[1])
        inside = len(shape) == len(offset) == x.dim() and all(
            0 <= o <= s - n for o, n, s in zip(offset, x.shape, shape, strict=True)
        )
        if not inside:
            raise ValueError(f"{list(x.shape)} at {list(offset)} is no box of a tensor of shape {list(shape)}")
    if x.is_complex():
        shape, offset = (*shape, 2), (*offset, 0)
    return _Part(x=_real(x), shape=shape, place=offset)


def _real(x: Tensor) -> Tensor:
    if hasattr(x, "to_local"):
        raise ValueError("a DTensor has no digest, since that would communicate: take its local tensor and its box")
    if x.layout != torch.strided:
        raise ValueError(f"a digest needs a dense tensor, this one is {x.layout}")
    x = x.detach().resolve_conj().resolve_neg()
    if x.is_complex():
        return torch.view_as_real(x)
    return x.view(torch.uint8) if x.dtype == torch.bool else x


# ------------------------------------------------------------------------------------------------ passes over the parts


def _values(parts: Sequence[_Part]) -> list[Values]:
    values = _summed(parts)
    doubtful = [i for i, (v, part) in enumerate(zip(values, parts, strict=True)) if _is_doubtful(v, part.x.dtype)]
    if not doubtful:
        return values
    for i, again in zip(doubtful, _summed([parts[i] for i in doubtful], careful=True), strict=True):
        values[i] = values[i]._replace(
            nonfinite=again.zeros - values[i].zeros,  # they are zeros the second time
            sum_squares=again.sum_squares,
            largest=again.largest,
            sketch=again.sketch,
        )
    return values


def _is_doubtful(values: Values, dtype: torch.dtype) -> bool:
    """True where the sums met a NaN or an infinity, or squares overflowed, or vanished in float32."""
    if values.sum_squares < 1e-25:
        return values.largest > 0 and Dtypes.of(dtype).total == torch.float32
    return not math.isfinite(values.sum_squares)


def _finite(x: Tensor) -> Tensor:
    """A copy with zeros for non-finite values, of a type whose sums are float64."""
    return torch.nan_to_num(x.float() if x.dtype.itemsize <= 2 else x, nan=0.0, posinf=0.0, neginf=0.0)


@torch.no_grad()
def _summed(parts: Sequence[_Part], *, careful: bool = False) -> list[Values]:
    """The values of each part; where `careful`, of its finite elements, and slower."""
    packed: defaultdict[torch.device, list[Tensor]] = defaultdict(list)
    owners: defaultdict[torch.device, list[tuple[int, int]]] = defaultdict(list)  # of each row: which part, elements
    for indices in _batches(parts):
        first = parts[indices[0]]
        device = first.x.device
        for piece in pieces(_stacked([parts[i].x for i in indices]), first.shape, first.place):
            packed[device].append(sums(replace(piece, x=_finite(piece.x)) if careful else piece))
            owners[device] += itertools.product(indices, [piece.x.numel() // len(indices)])

    totals: list[Values | None] = [None] * len(parts)
    for device in packed:
        for (i, elements), fetched in zip(owners[device], _fetched(packed[device]), strict=True):
            values, total = fetched._replace(elements=elements), totals[i]
            totals[i] = values if total is None else add(total, values)
    return [
        NOTHING if total is None else _without_padding(total, part.x.numel())
        for total, part in zip(totals, parts, strict=True)
    ]


def _batches(parts: Sequence[_Part]) -> Iterator[list[int]]:
    """Indices of parts that can share a pass; empty parts need none."""
    alike: defaultdict[object, list[int]] = defaultdict(list)
    for i, part in enumerate(parts):
        if part.x.numel():
            alike[part.shape, part.place, part.x.shape, part.x.dtype, part.x.device].append(i)
    for indices in alike.values():
        x = parts[indices[0]].x
        together = max(1, min(most_blocks(x.device), chunk(x.device) // x.numel()))
        yield from (indices[i : i + together] for i in range(0, len(indices), together))


def _stacked(xs: list[Tensor]) -> Tensor:
    """[tensors, ...]"""
    x = xs[0]
    if len(xs) == 1:
        return x.unsqueeze(0)
    return torch.stack(xs, out=scratch("stack", torch.Size((len(xs), *x.shape)), x.dtype, x.device))


def _fetched(packed: list[Tensor]) -> Iterator[Values]:
    """What :func:`sums` packed; elements are left to the caller. This is the moment that waits for an accelerator."""
    rows = torch.cat(packed).cpu()
    fingerprints = rows[:, 0].tolist()
    numbers = rows[:, 1:].view(torch.float64).tolist()
    for fingerprint, (zeros, sum_squares, largest, *sketch) in zip(fingerprints, numbers, strict=True):
        yield Values(fingerprint % 2**64, 0, int(zeros), 0, sum_squares, largest, tuple(sketch))


def _without_padding(values: Values, elements: int) -> Values:
    """Takes out the zeros in which a box that cuts short rows was embedded."""
    padding = values.elements - elements
    return values._replace(elements=elements, zeros=values.zeros - padding) if padding else values
