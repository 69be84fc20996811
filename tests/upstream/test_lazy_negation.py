"""torch 2.13: collectives that write into a tensor whose negation is lazy do nothing, and say nothing.

``z.conj().imag`` is such a tensor: a view with a bit that says "negate when read". all_reduce and broadcast work on a
negated copy. They refuse a lazily conjugated one. Way round: ``x.resolve_neg()`` before.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from upstream_ranks import run


def imaginary(rank: int) -> Tensor:
    part = torch.complex(torch.zeros(2), torch.tensor([1.0, 2.0 + rank])).conj().imag
    assert part.is_neg()
    return part


def reduced(rank: int) -> list[list[float]]:
    lazy, plain = imaginary(rank), imaginary(rank).resolve_neg()
    dist.all_reduce(lazy)
    dist.all_reduce(plain)
    return [lazy.tolist(), plain.tolist()]


def broadcast(rank: int) -> list[list[float]]:
    lazy, plain = imaginary(rank), imaginary(rank).resolve_neg()
    dist.broadcast(lazy, src=0)
    dist.broadcast(plain, src=0)
    return [lazy.tolist(), plain.tolist()]


def test_all_reduce_leaves_it_as_it_was(tmp_path: Path) -> None:
    for rank, (lazy, plain) in enumerate(run(reduced, tmp_path)):
        assert lazy == [-1.0, -2.0 - rank]
        assert plain == [-2.0, -5.0]


def test_so_does_broadcast(tmp_path: Path) -> None:
    lazy, plain = run(broadcast, tmp_path)[1]
    assert lazy == [-1.0, -3.0]
    assert plain == [-1.0, -2.0]
