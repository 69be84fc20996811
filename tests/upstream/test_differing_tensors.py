"""torch 2.13 on gloo: tensors that differ over ranks in shape, dtype or operation are reduced without any error.

Of shapes (5 elements against 4 and 4), the rank with more raises, the others return, one of them with wrong values; in
other orders a rank is ended by an abort in C++, without a traceback. Of dtypes and operations, all return. Way round:
TORCH_DISTRIBUTED_DEBUG=DETAIL compares them before each operation, and slows it down. The harness needs none: what was
reduced differs from the reference, or the rung does not complete.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from upstream_ranks import run


def shapes(rank: int) -> Tensor:
    x = torch.full((4 if rank else 5,), 1.0 + rank)
    dist.all_reduce(x)
    return x


def dtypes(rank: int) -> Tensor:
    x = torch.ones(4, dtype=torch.int32 if rank else torch.float32)
    dist.all_reduce(x)
    return x


def operations(rank: int) -> Tensor:
    x = torch.full((4,), 2.0 + rank)
    dist.all_reduce(x, op=dist.ReduceOp.PRODUCT if rank else dist.ReduceOp.SUM)
    return x


def test_dtypes(tmp_path: Path) -> None:
    one, other = run(dtypes, tmp_path)
    assert one.tolist() != [2.0] * 4
    assert other.tolist() != [2] * 4, "the bits of ones of the other kind were added"


def test_operations(tmp_path: Path) -> None:
    one, other = run(operations, tmp_path)
    assert torch.equal(one, other)
    assert sorted(set(one.tolist())) == [5.0, 6.0], "a part was added, another multiplied"


def test_shapes(tmp_path: Path) -> None:
    found = run(shapes, tmp_path, size=3)
    silent = [x.tolist() for x in found if isinstance(x, Tensor)]
    assert silent, "every rank raises now"
    assert any(x != [6.0] * 4 for x in silent), "what the others return is right now"


def test_debug_mode_finds_them(tmp_path: Path) -> None:
    found = run(shapes, tmp_path, TORCH_DISTRIBUTED_DEBUG="DETAIL")
    assert all(isinstance(x, str) and "mismatch" in x for x in found), found
