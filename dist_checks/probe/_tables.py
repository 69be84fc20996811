"""What the digest looks up or writes over: hashes, tables of weights and signs, scratch buffers."""

from __future__ import annotations

import functools
import math
import threading
from enum import IntEnum

import torch
from torch import Tensor

WIDTH = 4096
"""Most columns of a block."""

MOST_BLOCKS = 4096
"""Most blocks that are summed at once: bounds what is kept for each block before it is summed."""

SIGN_PERIOD = 4096


class Salt(IntEnum):
    """Keeps the hashes apart that are made of the same small indices. Part of the definition: never change one."""

    WORD = 1
    SIGN = 2
    BLOCK = 3


def hashed(indices: Tensor, salt: Salt) -> Tensor:
    """A pseudorandom int64 for each int64 index: the mixing of splitmix64 (Steele, Lea and Flood, 2014)."""
    z = (indices + (salt << 48)) * (0x9E3779B97F4A7C15 - 2**64)
    z = (z ^ _logical_shift(z, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    z = (z ^ _logical_shift(z, 27)) * (0x94D049BB133111EB - 2**64)
    return z ^ _logical_shift(z, 31)


def _logical_shift(z: Tensor, bits: int) -> Tensor:
    # torch shifts int64 arithmetically: the copies of the sign bit are masked away.
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def sign_of(hashes: Tensor) -> Tensor:
    """The topmost bit as +1 or -1."""
    return (hashes >> 63) | 1


# Tables are made on the CPU and then copied, so that every device has the same ones and no stream of an accelerator
# can read one that another stream is still writing; and outside of inference mode, so that they can be used there too.


@functools.cache
def word_weights(device: torch.device) -> Tensor:
    """int64 [WIDTH]: an odd weight for the k-th 8-byte word of a block."""
    with torch.inference_mode(False):
        return (hashed(torch.arange(WIDTH, device="cpu"), Salt.WORD) | 1).to(device)


@functools.cache
def _sign_line(dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        period = sign_of(hashed(torch.arange(SIGN_PERIOD, device="cpu"), Salt.SIGN)).to(dtype)
        return period.repeat(math.ceil((SIGN_PERIOD + MOST_BLOCKS + WIDTH) / SIGN_PERIOD)).to(device)


def signs(diagonal: int, column: int, blocks: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """+1 or -1 [blocks, columns]: entry (i, j) is number diagonal + i + column + j of a periodic line of signs.

    The rows of this view overlap in memory: a pattern with one row a block that still fits the innermost cache.
    """
    start = (diagonal + column) % SIGN_PERIOD
    return _sign_line(dtype, device).as_strided((blocks, columns), (1, 1), start)


class _Buffers(threading.local):
    """One set a thread: the hooks of a backward pass may run on several."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, torch.dtype], Tensor] = {}


_buffers = _Buffers()


def scratch(use: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An uninitialised tensor, on a CPU the same memory each time: fresh memory costs a page fault every 4 KiB.

    Accelerators have an allocator that knows about streams; memory that is kept here would be shared between them.
    """
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    size = math.prod(shape)
    buffer = _buffers.of.get((use, dtype))
    if buffer is None or buffer.numel() < size:
        with torch.inference_mode(False):
            buffer = _buffers.of[use, dtype] = torch.empty(size, dtype=dtype, device=device)
    return buffer[:size].view(shape)
