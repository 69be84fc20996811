"""The arithmetic of the digest: what a piece of a tensor adds to it. The definition stands in digest.py."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dist_checks.probe._blocks import Piece
from dist_checks.probe._tables import block_hashes, chunk, is_cpu, scratch, sign_of, signs, word_weights
from dist_checks.trace import BUCKETS

WORD = 8
"""Bytes."""


class Dtypes(NamedTuple):
    element: torch.dtype
    """Holds every element exactly."""
    total: torch.dtype
    """Of sums inside a block."""

    @staticmethod
    def of(dtype: torch.dtype) -> Dtypes:
        if dtype.is_floating_point and dtype.itemsize <= 2:
            return Dtypes(torch.float32, torch.float32)
        return Dtypes(torch.float32 if dtype == torch.float32 else torch.float64, torch.float64)


class OfBlocks(NamedTuple):
    """What is known of each block before blocks are summed: [tensors, blocks] each, but for the lanes."""

    fingerprint: Tensor  # without the block's own weight
    lanes: Tensor  # [tensors, blocks, lanes]: the sketch without the block's own sign and place
    length: Tensor  # square root of the sum of squares
    highest: Tensor
    lowest: Tensor
    zeros: Tensor


def sums(piece: Piece) -> Tensor:
    """int64 [tensors, 4 + BUCKETS]: fingerprint, then the bits of float64: zeros, sum of squares, largest, sketch."""
    x = piece.x
    blocks = x.shape[1]
    step = max(1, chunk(x.device) * blocks // x.numel())
    chunks = [
        _of_blocks(x.narrow(1, i, min(step, blocks - i)), piece.diagonal + i, piece.column, piece.lanes)
        for i in range(0, blocks, step)
    ]
    of_blocks = chunks[0] if len(chunks) == 1 else OfBlocks(*(torch.cat(c, 1) for c in zip(*chunks, strict=True)))
    return _over_blocks(of_blocks, piece)


def _of_blocks(x: Tensor, diagonal: int, column: int, lanes: int) -> OfBlocks:
    """Of x [tensors, blocks, columns], the columns of its blocks from `column` on; `diagonal` as in Piece."""
    # The order and the two scratch buffers are chosen for the cache; a plain pass over x comes first to fetch it.
    x, words = _as_words(x, column)
    element, total = Dtypes.of(x.dtype)
    numbers = x if x.dtype == element else scratch("converted", x.shape, element, x.device).copy_(x)
    highest, lowest = numbers.amax(-1), numbers.amin(-1)
    fingerprint = _weighed(words, column * x.element_size() // WORD)
    product = scratch("product", x.shape, element, x.device)
    zeros = torch.eq(numbers, 0, out=product).sum(-1)  # as floats: bools are slower to write and to sum
    plus_minus = signs(diagonal + column, x.shape[1], x.shape[2], element, x.device)
    signed = torch.mul(numbers, plus_minus, out=product)
    if total != element:
        signed = scratch("converted", x.shape, total, x.device).copy_(signed)
    return OfBlocks(
        fingerprint=fingerprint,
        lanes=_in_lanes(signed, lanes),
        length=torch.linalg.vector_norm(signed, dim=-1),
        highest=highest,
        lowest=lowest,
        zeros=zeros,
    )


def _as_words(x: Tensor, column: int) -> tuple[Tensor, Tensor]:
    """x and its 8-byte words as int64; a copy of x with zeros around it where memory does not hold whole words."""
    in_word = WORD // x.element_size()
    before, after = column % in_word, -(column + x.shape[-1]) % in_word
    steps = (x.storage_offset(), *x.stride()[:-1])
    if not before and not after and x.stride(-1) == 1 and not any(step % in_word for step in steps):
        return x, x.view(torch.int64)
    shape = torch.Size((*x.shape[:-1], before + x.shape[-1] + after))
    around = scratch("around", shape, x.dtype, x.device)
    if before or after:
        around.zero_()
    return around.narrow(-1, before, x.shape[-1]).copy_(x), around.view(torch.int64)


def _weighed(words: Tensor, first: int) -> Tensor:
    """[tensors, blocks, words] -> [tensors, blocks]: sums of weight * (word + (word >> 33)), from word `first` on."""
    device = words.device
    weights = word_weights(first, words.shape[-1], device)
    shifted = torch.bitwise_right_shift(words, 33, out=scratch("product", words.shape, torch.int64, device))
    if is_cpu(device):  # two products with the weights cost less than to add the words first
        total = torch.mv(words.flatten(0, 1), weights)
        return total.addmv_(shifted.flatten(0, 1), weights).view(words.shape[:2])
    return shifted.add_(words).mul_(weights).sum(-1)  # accelerators lack integer matrix products


def _in_lanes(x: Tensor, lanes: int) -> Tensor:
    """[..., columns] -> [..., lanes]: sums of the columns that leave the same remainder."""
    count, rest = divmod(x.shape[-1], lanes)
    whole = count * lanes
    totals = torch.unflatten(x.narrow(-1, 0, whole), -1, (count, lanes)).sum(-2)
    if rest:
        totals.narrow(-1, 0, rest).add_(x.narrow(-1, whole, rest))
    return totals


def _over_blocks(of_blocks: OfBlocks, piece: Piece) -> Tensor:
    """The sums over blocks, packed as :func:`sums` returns them."""
    hashes = block_hashes(piece.first, piece.step, piece.x.shape[1], piece.x.device)
    fingerprint = (of_blocks.fingerprint * (hashes | 1)).sum(1, keepdim=True)
    zeros = of_blocks.zeros.sum(1, dtype=torch.float64)
    sum_squares = of_blocks.length.double().square().sum(1)
    largest = torch.maximum(of_blocks.highest.amax(1), -of_blocks.lowest.amin(1)).double()
    numbers = torch.cat((torch.stack((zeros, sum_squares, largest), 1), _sketch(of_blocks.lanes, hashes, piece)), 1)
    return torch.cat((fingerprint, numbers.view(torch.int64)), 1)


def _sketch(lanes: Tensor, hashes: Tensor, piece: Piece) -> Tensor:
    """[tensors, blocks, lanes] -> [tensors, BUCKETS]"""
    lanes = lanes * sign_of(hashes).double().unsqueeze(1)
    if shift := piece.column % piece.lanes:
        lanes = lanes.roll(shift, -1)
    # Laid end to end and read 64 at a time, the lanes of each block begin lanes - 64 buckets after those of the one
    # before: what the definition asks for, since the diagonal grows by one from block to block.
    line = lanes.flatten(1)
    buckets = torch.unflatten(F.pad(line, (0, -line.shape[1] % BUCKETS)), 1, (-1, BUCKETS)).sum(1)
    return buckets.roll(piece.lanes * piece.diagonal % BUCKETS, -1)
