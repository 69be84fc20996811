"""torch 2.13 on gloo: the gradient of torch.distributed.nn.functional.all_gather is wrong where the gradient that
arrives has permuted strides, as the gradients of attention have.

Backward receives the parts in tensors made by ``empty_like``, which keeps the strides, and gloo's scatter fills the
memory of such a tensor in its order there (test_scatter.py). Way round: gather by
``torch.distributed._functional_collectives.all_gather_single_autograd``, as the axis cp does. Planted as the fault
nn_all_gather, the harness says: output gradient blocks.0 differs from that of one device.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.distributed._functional_collectives as collectives
import torch.distributed.nn.functional
from torch import Tensor
from upstream_ranks import run

RANKS = [0, 1]


def arriving(permuted: bool) -> Tensor:
    """The same gradient of what was gathered, (2, 2, 3), with one layout in memory or the other."""
    gradient = torch.arange(12.0).view(2, 2, 3)
    return gradient.transpose(1, 2).contiguous().transpose(1, 2) if permuted else gradient


def by_nn(permuted: bool) -> Tensor:
    x = torch.zeros(2, 3, requires_grad=True)
    parts = torch.distributed.nn.functional.all_gather(x)
    torch.autograd.backward(list(parts), list(arriving(permuted)))
    assert x.grad is not None
    return x.grad


def permuted_by_nn(rank: int) -> Tensor:
    return by_nn(permuted=True)


def plain_by_nn(rank: int) -> Tensor:
    return by_nn(permuted=False)


def permuted_by_functional_collectives(rank: int) -> Tensor:
    x = torch.zeros(2, 3, requires_grad=True)
    whole = collectives.all_gather_single_autograd(x, 0, RANKS)
    torch.autograd.backward(whole, arriving(permuted=True).flatten(0, 1))
    assert x.grad is not None
    return x.grad


def test_permuted_strides_give_a_wrong_gradient(tmp_path: Path) -> None:
    for rank, found in enumerate(run(permuted_by_nn, tmp_path)):
        right = 2 * arriving(permuted=True)[rank]
        assert not torch.equal(found, right), "torch is right now: the way round can go"
        assert torch.equal(found.flatten().sort().values, right.flatten().sort().values), "the same numbers elsewhere"


def test_contiguous_ones_a_right_one(tmp_path: Path) -> None:
    for rank, found in enumerate(run(plain_by_nn, tmp_path)):
        assert torch.equal(found, 2 * arriving(permuted=False)[rank])


def test_the_way_round(tmp_path: Path) -> None:
    for rank, found in enumerate(run(permuted_by_functional_collectives, tmp_path)):
        assert torch.equal(found, 2 * arriving(permuted=True)[rank])
