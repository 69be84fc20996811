"""torch 2.13 on gloo: scatter, and reduce_scatter of a list, are wrong where a tensor is not contiguous.

Both copy memory in its order there, without a look at strides: a transposed input or output gives right numbers in
wrong places. all_gather, gather and all_to_all of the same tensors are right; send, recv and all_to_all_single refuse
them. Way round: make every tensor contiguous, the outputs too (``empty_like`` keeps strides), or use the
reduce_scatter_tensor of functional collectives.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from upstream_ranks import run


def part(rank: int) -> Tensor:
    return torch.arange(6.0).view(2, 3) + 10 * rank


def transposed(x: Tensor) -> Tensor:
    """Equal to x, with another layout in memory."""
    return x.t().contiguous().t()


def same(x: Tensor) -> Tensor:
    return x


Layout = Callable[[Tensor], Tensor]


def scattered(rank: int, given: Layout, got: Layout) -> Tensor:
    out = got(torch.zeros(2, 3))
    dist.scatter(out, [given(part(r)) for r in range(2)] if rank == 0 else None, src=0)
    return out.contiguous()


def reduce_scattered(rank: int, given: Layout, got: Layout) -> Tensor:
    out = got(torch.zeros(2, 3))
    dist.reduce_scatter(out, [given(part(r)) for r in range(2)])
    return out.contiguous() / 2


def all_gathered(rank: int, given: Layout, got: Layout) -> Tensor:
    out = [got(torch.zeros(2, 3)) for _ in range(2)]
    dist.all_gather(out, given(part(rank)))
    return out[rank].contiguous()


def all_of_them(rank: int) -> list[list[bool]]:
    """Whether each operation is right with contiguous tensors, transposed inputs, transposed outputs."""
    layouts = [(same, same), (transposed, same), (same, transposed)]
    return [
        [torch.equal(operation(rank, given, got), part(rank)) for given, got in layouts]
        for operation in (scattered, reduce_scattered, all_gathered)
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_only_contiguous_tensors_are_scattered_rightly(rank: int, tmp_path: Path) -> None:
    scatter, reduce_scatter, all_gather = run(all_of_them, tmp_path)[rank]
    assert scatter == [True, False, False]
    assert reduce_scatter == [True, False, False]
    assert all_gather == [True, True, True]
