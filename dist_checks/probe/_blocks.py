"""How a full tensor is cut into blocks, and which of them, or of their columns, a part of it holds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dist_checks.probe._tables import WIDTH, most_blocks

SHORTEST_ROW = 256

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A full tensor read as a matrix: its fewest last dims that have SHORTEST_ROW elements together are one row."""

    dims: int
    """Number of leading dims that count rows."""
    length: int
    """Elements of a row: all, where the tensor has fewer than SHORTEST_ROW."""
    segments: int
    """Blocks of a row."""
    lanes: int
    """Columns of a block with the same remainder by this prime share a bucket of the sketch."""

    @staticmethod
    def of(shape: Shape) -> Rows:
        dims, length = len(shape), 1
        while dims and length < SHORTEST_ROW:
            dims -= 1
            length *= shape[dims]
        # Short rows stand side by side in a block: one of their columns meets every lane, unless lanes divides their
        # width. Both primes leave a small odd remainder by 64, so that blocks begin at every bucket in turn.
        short = math.prod(shape[dims + 1 :])
        return Rows(dims=dims, length=length, segments=-(-length // WIDTH), lanes=71 if short % 67 == 0 else 67)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some columns of blocks that follow each other down a column of blocks, or along a row of them."""

    x: Tensor
    """[tensors, blocks, columns]: the same piece of several tensors."""
    first: int
    """Number of the first block: row * segments + segment."""
    step: int
    """From one block's number to the next."""
    diagonal: int
    """Row + segment of the first block; it grows by one from block to block."""
    column: int
    """Where x begins inside its blocks."""
    lanes: int


def pieces(stack: Tensor, shape: Shape, place: Shape | int) -> Iterator[Piece]:
    """Of parts [tensors, ...] at one place in full tensors of `shape`: a box's offset, or where a flat range starts."""
    rows = Rows.of(shape)
    cut = _flat_range(stack, rows, place) if isinstance(place, int) else _box(stack, rows, shape, place)
    for matrix, row, column in cut:
        yield from _matrix(matrix, rows, row, column)


def _box(stack: Tensor, rows: Rows, shape: Shape, offset: Shape) -> Iterator[tuple[Tensor, int, int]]:
    """Matrices [tensors, rows, columns] with the row and the column where each begins in the full matrix."""
    stack = _with_whole_short_rows(stack, rows, shape, offset)
    box, dims = tuple(stack.shape[1:]), rows.dims
    column = math.prod(shape[dims + 1 :]) * offset[dims] if shape else 0
    # Rows follow each other as far as the dims behind the first one are whole.
    outer = max((d for d in range(1, dims) if box[d] != shape[d]), default=0)
    for index in itertools.product(*map(range, box[:outer])):
        row = 0
        for d in range(dims):
            row = row * shape[d] + offset[d] + (index[d] if d < outer else 0)
        matrix = stack
        for i in index:
            matrix = matrix.select(1, i)
        yield matrix.reshape(len(stack), math.prod(box[outer:dims]), math.prod(box[dims:])), row, column


def _with_whole_short_rows(stack: Tensor, rows: Rows, shape: Shape, offset: Shape) -> Tensor:
    """A box that is cut inside the short rows is no run of columns: embed it in zeros, which add nothing."""
    short = range(rows.dims + 1, len(shape))
    if all(stack.shape[1 + d] == shape[d] for d in short):
        return stack
    around = [(offset[d], shape[d] - offset[d] - stack.shape[1 + d]) for d in reversed(short)]
    return F.pad(stack, [zeros for pair in around for zeros in pair])


def _flat_range(stack: Tensor, rows: Rows, start: int) -> Iterator[tuple[Tensor, int, int]]:
    """A piece of a row, whole rows, a piece of a row: as :func:`_box`."""
    while left := stack.shape[1]:
        row, column = divmod(start, rows.length)
        if column or left < rows.length:
            taken, count = min(left, rows.length - column), 1
        else:
            count = left // rows.length
            taken = count * rows.length
        yield torch.unflatten(stack[:, :taken], 1, (count, taken // count)), row, column
        stack, start = stack[:, taken:], start + taken


def _matrix(matrix: Tensor, rows: Rows, row: int, column: int) -> Iterator[Piece]:
    """The pieces of a matrix [tensors, rows, columns]."""
    count, columns = matrix.shape[1:]
    if 1 < count < columns // WIDTH:  # few long rows: larger pieces along them than down the columns of blocks
        for i in range(count):
            yield from _matrix(matrix[:, i : i + 1], rows, row + i, column)
        return
    while columns:
        segment, start = divmod(column, WIDTH)
        along = columns // WIDTH if count == 1 and start == 0 else 0
        if along:
            taken = along * WIDTH
            x = torch.unflatten(matrix[:, 0, :taken], -1, (along, WIDTH))
        else:
            taken = min(columns, WIDTH - start)
            x = matrix[:, :, :taken]
        step = 1 if along else rows.segments
        together = most_blocks(x.device)
        for i in range(0, x.shape[1], together):
            yield Piece(
                x=x[:, i : i + together],
                first=row * rows.segments + segment + i * step,
                step=step,
                diagonal=row + segment + i,
                column=start,
                lanes=rows.lanes,
            )
        matrix, column, columns = matrix[:, :, taken:], column + taken, columns - taken
