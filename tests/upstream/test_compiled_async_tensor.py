"""torch 2.13: a compiled function that is given what a DTensor's collective has not been waited for loses the gradient.

``to_local`` hands out an AsyncCollectiveTensor. What compiled code makes of it needs no gradient; where other inputs
need one, as in a block of tensor parallelism, backward ends in "'Tensor' object has no attribute '_local_tensor'". Way
round: give it a copy, which is a plain tensor, as the axis compile does.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from upstream_ranks import run


def double(x: Tensor) -> Tensor:
    return x * 2


def gradient(copied: bool) -> Tensor | None:
    """Of the sum of ones over two ranks, doubled; None where the result needs none."""
    mesh = init_device_mesh("cpu", (2,))
    weight = torch.ones(4, requires_grad=True)
    summed = DTensor.from_local(weight * 1, mesh, [Partial()]).redistribute(placements=[Replicate()], async_op=True)
    x = summed.to_local()
    assert x.requires_grad
    result = torch.compile(double, backend="aot_eager")(x.clone() if copied else x)
    if not result.requires_grad:
        return None
    result.sum().backward()
    return weight.grad


def as_it_is(rank: int) -> Tensor | None:
    return gradient(copied=False)


def copied(rank: int) -> Tensor | None:
    return gradient(copied=True)


def test_the_gradient_is_lost(tmp_path: Path) -> None:
    assert run(as_it_is, tmp_path) == [None, None], "torch is right now: the copy can go"
    assert all((tmp_path / f"rank{rank}.pt").exists() for rank in range(2)), "and not because a rank has died"


def test_the_way_round(tmp_path: Path) -> None:
    for found in run(copied, tmp_path):
        assert torch.equal(found, torch.full((4,), 2.0))
