"""The digest: a few numbers about a tensor that add up over its parts, however it is cut and wherever the parts are.

A full tensor is read as a matrix: its fewest last dims that have at least 256 elements together are one *row*. A row
is cut into *segments* of 4096 elements, the last one shorter. One segment of one row is a *block*; an element is known
by its block b and its column j inside the block. With h(b) a hash of the block's number:

fingerprint = sum over b, k of  odd(h(b)) * weight(k) * (u + (u >> 33))  mod 2**64, where u is the k-th 8-byte word of
    the block's bytes as a signed integer and weight(k) is odd. Without u >> 33 an even number of flipped top bits would
    cancel, as odd * 2**63 is the same for every odd number; and it must be added, not xor-ed, so that a word that is
    cut (its other elements read as zeros) is the sum of its parts.

sketch[(j mod lanes + lanes * d) mod 64] += sign(h(b)) * sign(d + j) * x[b, j], where d = row + segment of the block and
    lanes is a prime number, 67 as a rule. Elements that follow each other along a row, down a column, from block to
    block or from one short row to the next inside a block all go through the buckets. The sketch is linear, and the
    length of the difference of two sketches estimates the length of the difference of the tensors, with a spread near
    1 / sqrt(2 * 64) (count sketch: Charikar, Chen and Farach-Colton, 2002).

statistics: number of elements, zeros and non-finite values, sum of squares and largest magnitude of the finite ones.
    Non-finite values count as 0 in the sketch too. Sums are float64; float32 inside a block for floats of 1 or 2 bytes.

A complex tensor is read as real and imaginary parts (two elements each), a bool as 0 and 1.

Everything here runs on every rank alone: it calls no collective, draws no random number, records nothing for autograd
and waits for an accelerator once a call, once more where non-finite values are found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dist_checks.probe._blocks import Piece, Shape, pieces
from dist_checks.probe._tables import MOST_BLOCKS, Salt, hashed, scratch, sign_of, signs, word_weights
from dist_checks.trace import BUCKETS, Values, add

__all__ = ["digest", "digest_flat", "digest_many"]

WORD = 8
"""Bytes."""

NOTHING = Values(0, 0, 0, 0, 0.0, 0.0, (0.0,) * BUCKETS)

# ------------------------------------------------------------------------------------------------ the three ways in


def digest(x: Tensor, *, shape: Sequence[int] | None = None, offset: Sequence[int] | None = None) -> Values:
    """Digest of x, the box at `offset` of a full tensor of `shape`; by default x is the whole tensor."""
    box = (x.shape if shape is None else shape, [0] * x.dim() if offset is None else offset)
    return _values([_box_part(x, box)])[0]


def digest_flat(x: Tensor, *, shape: Sequence[int], start: int) -> Values:
    """Digest of x [n], the elements start to start + n in row-major order of a full tensor of `shape`."""
    if x.dim() != 1 or start < 0 or start + x.numel() > math.prod(shape):
        raise ValueError(f"{list(x.shape)} elements at {start} are no flat range of a tensor of shape {list(shape)}")
    if x.is_complex():
        return _values([_Part(x=_real(x).flatten(), shape=(*shape, 2), place=2 * start)])[0]
    return _values([_Part(x=_real(x), shape=tuple(shape), place=start)])[0]


def digest_many(
    xs: Sequence[Tensor], *, boxes: Sequence[tuple[Sequence[int], Sequence[int]] | None] | None = None
) -> list[Values]:
    """Digests of many tensors, in their order; small ones of one dtype, shape and place share a pass.

    `boxes[i]` is (shape, offset) of xs[i] in its full tensor, None where xs[i] is the whole tensor.
    """
    if boxes is None:
        boxes = [None] * len(xs)
    return _values([_box_part(x, box) for x, box in zip(xs, boxes, strict=True)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of a full tensor, as real numbers."""

    x: Tensor
    shape: Shape  # of the full tensor
    place: Shape | int  # the offset of a box, or where a flat range starts


def _box_part(x: Tensor, box: tuple[Sequence[int], Sequence[int]] | None) -> _Part:
    shape, offset = (tuple(x.shape), (0,) * x.dim()) if box is None else map(tuple, box)
    if not len(shape) == len(offset) == x.dim() or any(
        o < 0 or o + n > s for o, n, s in zip(offset, x.shape, shape, strict=True)
    ):
        raise ValueError(f"{list(x.shape)} at {list(offset)} is no box of a tensor of shape {list(shape)}")
    if x.is_complex():
        shape, offset = (*shape, 2), (*offset, 0)
    return _Part(x=_real(x), shape=shape, place=offset)


def _real(x: Tensor) -> Tensor:
    x = x.detach().resolve_conj().resolve_neg()
    if x.is_complex():
        return torch.view_as_real(x)
    return x.view(torch.uint8) if x.dtype == torch.bool else x


# ----------------------------------------------------------------------------------------------- passes over parts


def _values(parts: Sequence[_Part]) -> list[Values]:
    """Quickly, and once more with care those for which the quick sums overflowed, underflowed or met a NaN."""
    values = _summed(parts, careful=False)
    doubtful = [i for i, v in enumerate(values) if _is_doubtful(v, parts[i].x.dtype)]
    again = _summed([parts[i] for i in doubtful], careful=True)
    for i, value in zip(doubtful, again, strict=True):
        values[i] = value
    return values


def _is_doubtful(values: Values, dtype: torch.dtype) -> bool:
    if not math.isfinite(values.sum_squares):
        return True
    # Squares of small bfloat16 numbers vanish in float32.
    return _dtypes(dtype).total == torch.float32 and values.largest > 0 and values.sum_squares < 1e-25


@torch.no_grad()
def _summed(parts: Sequence[_Part], *, careful: bool) -> list[Values]:
    sums: dict[torch.device, list[Tensor]] = {}
    owners: dict[torch.device, list[tuple[int, int]]] = {}
    for batch in _batches(parts):
        first = parts[batch[0]]
        device = first.x.device
        for piece in pieces(_stacked([parts[i].x for i in batch]), first.shape, first.place):
            sums.setdefault(device, []).append(_sums(piece, careful=careful))
            owners.setdefault(device, []).extend((i, piece.x[0].numel()) for i in batch)

    values = [NOTHING] * len(parts)
    for device in sums:
        for (i, elements), value in zip(owners[device], _fetched(sums[device]), strict=True):
            values[i] = add(values[i], value._replace(elements=elements))
    return [_without_padding(v, part.x.numel()) for v, part in zip(values, parts, strict=True)]


def _batches(parts: Sequence[_Part]) -> Iterator[list[int]]:
    """The indices of parts that can share a pass."""
    alike: dict[object, list[int]] = {}
    for i, part in enumerate(parts):
        if part.x.numel():
            alike.setdefault((part.x.dtype, part.x.device, part.x.shape, part.shape, part.place), []).append(i)
    for indices in alike.values():
        x = parts[indices[0]].x
        size = max(1, min(MOST_BLOCKS, 4 * _chunk(x.device) // x.numel()))
        yield from (indices[i : i + size] for i in range(0, len(indices), size))


def _stacked(xs: list[Tensor]) -> Tensor:
    """[tensors, ...]"""
    if len(xs) == 1:
        return xs[0].unsqueeze(0)
    x = xs[0]
    return torch.stack(xs, out=scratch("stack", (len(xs), *x.shape), x.dtype, x.device))


def _fetched(sums: list[Tensor]) -> Iterator[Values]:
    """Unpack what :func:`_sums` packed. This is the moment that waits for an accelerator."""
    packed = torch.cat(sums).cpu()
    fingerprints = packed[:, 0].tolist()
    numbers = packed[:, 1:].view(torch.float64).tolist()
    for fingerprint, (zeros, nonfinite, sum_squares, largest, *sketch) in zip(fingerprints, numbers, strict=True):
        yield Values(
            fingerprint=fingerprint % 2**64,
            elements=0,  # known to the caller
            zeros=int(zeros),
            nonfinite=int(nonfinite),
            sum_squares=sum_squares,
            largest=largest,
            sketch=tuple(sketch),
        )


def _without_padding(values: Values, elements: int) -> Values:
    """Takes out the zeros in which a box that cuts short rows was embedded."""
    padding = values.elements - elements
    return values._replace(elements=elements, zeros=values.zeros - padding)


# ------------------------------------------------------------------------------------------------------ the arithmetic


class _Dtypes(NamedTuple):
    element: torch.dtype
    """Holds every element exactly."""
    total: torch.dtype
    """Sums inside a block."""


def _dtypes(dtype: torch.dtype) -> _Dtypes:
    if dtype.is_floating_point and dtype.itemsize <= 2:
        return _Dtypes(torch.float32, torch.float32)
    return _Dtypes(torch.float32 if dtype == torch.float32 else torch.float64, torch.float64)


def _chunk(device: torch.device) -> int:
    """Elements at a time: on a CPU they and all scratch buffers fit the second cache, elsewhere launches cost more."""
    return 1 << 16 if device.type == "cpu" else 1 << 21


class _OfBlocks(NamedTuple):
    """What is known of each block before the blocks are summed: tensors [tensors, blocks] and [..., lanes]."""

    words: Tensor
    lanes: Tensor
    length: Tensor  # square root of the sum of squares
    highest: Tensor
    lowest: Tensor
    zeros: Tensor
    nonfinite: Tensor

    @staticmethod
    def empty(piece: Piece, dtypes: _Dtypes) -> _OfBlocks:
        blocks, device = tuple(piece.x.shape[:2]), piece.x.device
        element, total = dtypes
        return _OfBlocks(
            words=scratch("words", blocks, torch.int64, device),
            lanes=scratch("lanes", (*blocks, piece.lanes), total, device),
            length=scratch("length", blocks, total, device),
            highest=scratch("highest", blocks, element, device),
            lowest=scratch("lowest", blocks, element, device),
            zeros=scratch("zeros", blocks, element, device),
            nonfinite=scratch("nonfinite", blocks, element, device).zero_(),
        )

    def narrow(self, dim: int, start: int, length: int) -> _OfBlocks:
        return _OfBlocks(*(x.narrow(dim, start, length) for x in self))


def _sums(piece: Piece, *, careful: bool) -> Tensor:
    """int64 [tensors, 5 + BUCKETS]: fingerprint, then the bits of float64: statistics, sketch."""
    x = piece.x
    dtypes = _Dtypes(torch.float64, torch.float64) if careful else _dtypes(x.dtype)
    of_blocks = _OfBlocks.empty(piece, dtypes)
    dim = 0 if len(x) > 1 else 1
    size = max(1, _chunk(x.device) * x.shape[dim] // x.numel())
    for start in range(0, x.shape[dim], size):
        length = min(size, x.shape[dim] - start)
        part, out = x.narrow(dim, start, length), of_blocks.narrow(dim, start, length)
        part = _weigh_words(part, piece.column, out.words)
        if careful:
            part = _masked(part, out.nonfinite)
        _measure(part, piece.diagonal + start * dim, piece.column, dtypes, out)
    return _summed_over_blocks(of_blocks, piece, careful)


def _weigh_words(x: Tensor, column: int, out: Tensor) -> Tensor:
    """Write the fingerprint of each block, without the block's own weight; x again, contiguous along its last dim."""
    x, words = _as_words(x, column)
    first = column * x.element_size() // WORD
    weights = word_weights(x.device)[first : first + words.shape[-1]]
    shifted = torch.bitwise_right_shift(words, 33, out=scratch("shifted", tuple(words.shape), words.dtype, x.device))
    if x.device.type == "cpu":
        flat = out.flatten()
        torch.mv(words.flatten(0, 1), weights, out=flat)
        flat.addmv_(shifted.flatten(0, 1), weights)
    else:  # no integer matrix products there
        torch.sum(shifted.add_(words).mul_(weights), -1, out=out)
    return x


def _as_words(x: Tensor, column: int) -> tuple[Tensor, Tensor]:
    """x and its 8-byte words as int64, x itself if it has whole words in memory, else a copy with zeros around it."""
    in_word = WORD // x.element_size()
    before, after = column % in_word, -(column + x.shape[-1]) % in_word
    steps = (x.storage_offset(), *x.stride()[:-1])
    if not before and not after and x.stride(-1) == 1 and not any(step % in_word for step in steps):
        return x, x.view(torch.int64)
    around = scratch("around", (*x.shape[:-1], before + x.shape[-1] + after), x.dtype, x.device)
    if before or after:
        around.zero_()
    copy = around.narrow(-1, before, x.shape[-1]).copy_(x)
    return copy, around.view(torch.int64)


def _masked(x: Tensor, nonfinite: Tensor) -> Tensor:
    """A float64 copy with zeros for non-finite values; writes their number in each block."""
    x = x.to(torch.float64, copy=True)
    bad = ~x.isfinite()
    torch.sum(bad, -1, dtype=nonfinite.dtype, out=nonfinite)
    return x.masked_fill_(bad, 0)


def _measure(x: Tensor, diagonal: int, column: int, dtypes: _Dtypes, out: _OfBlocks) -> None:
    """Write what the sketch and the statistics need of each block of x [tensors, blocks, columns]."""
    (_, blocks, columns), device = x.shape, x.device
    element, total = dtypes
    shape = tuple(x.shape)
    if x.dtype != element:
        x = scratch("element", shape, element, device).copy_(x)
    torch.amax(x, -1, out=out.highest)
    torch.amin(x, -1, out=out.lowest)
    # A float output: writing bools is slower, and so is summing them.
    torch.sum(torch.eq(x, 0, out=scratch("signed", shape, element, device)), -1, out=out.zeros)

    plus_minus = signs(diagonal, column, blocks, columns, element, device)
    signed = torch.mul(x, plus_minus, out=scratch("signed", shape, element, device))
    if total != element:
        signed = scratch("total", shape, total, device).copy_(signed)
    torch.linalg.vector_norm(signed, dim=-1, out=out.length)
    lanes = out.lanes.shape[-1]
    count, rest = divmod(columns, lanes)
    whole = count * lanes
    torch.sum(signed[..., :whole].unflatten(-1, (count, lanes)), -2, out=out.lanes)
    if rest:
        out.lanes[..., :rest] += signed[..., whole:]


def _summed_over_blocks(of_blocks: _OfBlocks, piece: Piece, careful: bool) -> Tensor:
    words, lanes, length, highest, lowest, zeros, nonfinite = of_blocks
    count = words.shape[1]
    numbers = torch.arange(count, device=words.device) * piece.step + piece.first
    hashes = hashed(numbers, Salt.BLOCK)
    fingerprint = (words * (hashes | 1)).sum(1, keepdim=True)

    lanes = (lanes * sign_of(hashes).double().unsqueeze(1)).roll(piece.column % piece.lanes, -1).flatten(1)
    # Read at a pitch of 64, each block of lanes begins lanes - 64 buckets after the one before.
    buckets = F.pad(lanes, (0, -lanes.shape[1] % BUCKETS)).unflatten(1, (-1, BUCKETS)).sum(1)
    sketch = buckets.roll(piece.lanes * piece.diagonal % BUCKETS, -1)

    zeros = zeros.sum(1, dtype=torch.float64)
    nonfinite = nonfinite.sum(1, dtype=torch.float64)
    squares = length.double().square().sum(1)
    largest = torch.maximum(highest.amax(1), -lowest.amin(1)).double()
    statistics = torch.stack((zeros - nonfinite, nonfinite, squares, largest), 1)
    return torch.cat((fingerprint, statistics.view(torch.int64), sketch.view(torch.int64)), 1)
