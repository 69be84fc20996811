"""What the digest looks up and writes over: hashes, tables made of them, scratch memory."""

from __future__ import annotations

import functools
import math
import threading
from enum import IntEnum

import torch
from torch import Tensor

WIDTH = 4096
"""Most columns of a block."""

MOST_BLOCKS = 1 << 16
SIGN_PERIOD = 1 << 12


@functools.cache  # the attribute is slow
def is_cpu(device: torch.device) -> bool:
    return device.type == "cpu"


def chunk(device: torch.device) -> int:
    """Elements at a time: on a CPU they and the scratch memory fit the second cache; elsewhere a launch costs more."""
    return 1 << 17 if is_cpu(device) else 1 << 21


def most_blocks(device: torch.device) -> int:
    """Blocks that are summed at a time: bounds what is kept of each block until then."""
    return 1 << 10 if is_cpu(device) else MOST_BLOCKS


class Salt(IntEnum):
    """Keeps hashes of the same small indices apart. Part of the definition of the digest: never change one."""

    WORD = 1
    SIGN = 2
    BLOCK = 3


def hashed(indices: Tensor, salt: Salt) -> Tensor:
    """A pseudorandom int64 for each int64 index: the mixing steps of splitmix64 (Steele, Lea and Flood, 2014)."""
    z = (indices + (salt << 48)) * (0x9E3779B97F4A7C15 - 2**64)
    z = (z ^ _shifted(z, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    z = (z ^ _shifted(z, 27)) * (0x94D049BB133111EB - 2**64)
    return z ^ _shifted(z, 31)


def _shifted(z: Tensor, places: int) -> Tensor:
    # To the right as unsigned: >> fills with the sign bit, and xor with that would always clear the topmost bit.
    return (z >> places) & ((1 << (64 - places)) - 1)


def sign_of(hashes: Tensor) -> Tensor:
    """The topmost bit as +1 or -1."""
    return (hashes >> 63) | 1


# Tables are made on the CPU and then copied, so that no stream of an accelerator reads one that another stream is still
# writing; and outside of inference mode, so that they can be used outside of it.


def _table(count: int, salt: Salt) -> Tensor:
    return hashed(torch.arange(count, device="cpu"), salt)


@functools.cache
def _all_word_weights(device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return (_table(WIDTH, Salt.WORD) | 1).to(device)


def word_weights(first: int, count: int, device: torch.device) -> Tensor:
    """int64 [count]: an odd weight for each 8-byte word of a block, from word `first` on."""
    return _all_word_weights(device)[first : first + count]


@functools.cache
def _first_block_hashes(device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return _table(MOST_BLOCKS, Salt.BLOCK).to(device)


def block_hashes(first: int, step: int, count: int, device: torch.device) -> Tensor:
    """int64 [count]: the hashes of the blocks numbered first, first + step, ..."""
    stop = first + step * (count - 1) + 1
    if stop <= MOST_BLOCKS:
        return _first_block_hashes(device)[first:stop:step]
    return hashed(torch.arange(first, stop, step, device=device), Salt.BLOCK)


@functools.cache
def _sign_line(dtype: torch.dtype, device: torch.device) -> Tensor:
    periods = math.ceil((SIGN_PERIOD + MOST_BLOCKS + WIDTH) / SIGN_PERIOD)
    with torch.inference_mode(False):
        return sign_of(_table(SIGN_PERIOD, Salt.SIGN)).repeat(periods).to(dtype).to(device)


def signs(start: int, blocks: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """+1 or -1 [blocks, columns]: entry (i, j) is number start + i + j of an endless, periodic line of signs.

    Its rows overlap in memory: each block has a row of its own, and all of them fit the innermost cache.
    """
    return _sign_line(dtype, device).as_strided((blocks, columns), (1, 1), start % SIGN_PERIOD)


class _Memory(threading.local):
    """Of each thread, since the hooks of a backward pass may run on several."""

    def __init__(self) -> None:
        self.buffers: dict[str, Tensor] = {}
        self.views: dict[tuple[str, torch.Size, torch.dtype], Tensor] = {}

    def view(self, use: str, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        size = math.prod(shape) * dtype.itemsize
        buffer = self.buffers.get(use)
        with torch.inference_mode(False):
            if buffer is None or len(buffer) < size:
                self.views.clear()  # they hold on to the old buffer
                buffer = self.buffers[use] = torch.empty(2 * size, dtype=torch.uint8, device="cpu")
            return buffer[:size].view(dtype).view(shape)


_memory = _Memory()


def scratch(use: str, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uninitialised, and on a CPU the same memory for each `use`: fresh memory costs a page fault every 4 KiB.

    Accelerators have allocators that know of streams; what is kept here would be shared between streams unguarded.
    """
    if not is_cpu(device):
        return torch.empty(shape, dtype=dtype, device=device)
    key = (use, shape, dtype)
    view = _memory.views.get(key)
    if view is None:
        if len(_memory.views) > 1000:
            _memory.views.clear()
        view = _memory.views[key] = _memory.view(use, shape, dtype)
    return view
