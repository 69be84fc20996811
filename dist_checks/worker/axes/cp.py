"""cp: the sequence cut into parts, one a rank; attention sees the keys and values of the others.

On a CPU keys and values are gathered: torch's context_parallel has no kernel there, and none for float64 anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed._functional_collectives as collectives
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from dist_checks.axes import Axis
from dist_checks.recipes.base import Attend, Batch, Recipe
from dist_checks.worker.axes import sequence, tp
from dist_checks.worker.mesh import World


def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    if world.degree(Axis.CP) == 1:
        return model
    if reason := recipe.lacking().get(Axis.CP):
        raise ValueError(f"{Axis.CP} {reason}")
    tp.check_divisors(recipe, Axis.CP, world)
    sequence.refuse_dropout(recipe, Axis.CP)
    length = recipe.collate([0]).inputs.shape[1] // world.degree(Axis.CP)
    start = world.layout.coordinates(world.rank)[Axis.CP] * length
    attend = ring if has_ring(world) else gathering(world.submesh(Axis.CP), start)
    recipe.split_sequence(model, start, attend)
    return model


def part(batch: Batch, world: World) -> Batch:
    """This rank's tokens of each sample, with their targets."""
    degree, at = world.degree(Axis.CP), world.layout.coordinates(world.rank)[Axis.CP]
    return batch if degree == 1 else batch.part(degree, at)


def gathering(mesh: DeviceMesh, start: int) -> Attend:
    """On every rank of ``mesh``: attention of its tokens, the first of which is at ``start``, to all before them."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = gather(torch.stack([k, v]), mesh)
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=before(start, q, keys))

    return attend


def gather(x: Tensor, mesh: DeviceMesh) -> Tensor:
    """On every rank of ``mesh``: the parts of all ranks side by side, along the last dim but one. Each rank's gradient
    is the sum over ranks: torch.distributed.nn.functional.all_gather gives another one (tests/upstream)."""
    whole: Tensor = collectives.all_gather_single_autograd(x, x.ndim - 2, mesh)
    return whole


def before(start: int, q: Tensor, k: Tensor) -> Tensor:
    """(queries, keys), True where the key is not after the query, of which the first is at ``start``."""
    queries, keys = (torch.arange(x.shape[-2], device=x.device) for x in (q, k))
    return keys <= queries.unsqueeze(1) + start


# Where torch has kernels for it


def has_ring(world: World) -> bool:
    """Whether torch's context_parallel is to be used: its kernels are those of CUDA, none of which takes float64."""
    return world.device.type == "cuda" and world.rung.precision != "fp64"


def ring(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Inside :func:`context`, where torch replaces what is called here by ring attention."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@contextmanager
def context(world: World) -> Iterator[None]:
    """Around forward and backward of each micro-batch."""
    if world.degree(Axis.CP) == 1 or not has_ring(world):
        yield
        return
    from torch.distributed.tensor.experimental import context_parallel

    # It has to be given something to cut, but the worker has cut inputs and targets by itself: into runs of tokens,
    # where torch would give each rank one from both ends, unless there is an odd number for each.
    something = torch.zeros(world.degree(Axis.CP), device=world.device)
    with context_parallel(world.submesh(Axis.CP), buffers=[something], buffer_seq_dims=[0]):
        yield
