"""ep: experts spread over ranks that read different samples; tokens travel to them by all-to-all, and back.

What is no expert is replicated over these ranks (see :mod:`dp_replicate` and :mod:`dp_shard`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe, local
from dist_checks.worker.mesh import World

Forward = Callable[[Tensor, Tensor], Tensor]
"""(tokens in the order of their experts, (n, width); how many each expert has) -> (n, width)."""


def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    degree = world.degree(Axis.EP)
    if degree == 1:
        return model
    modules = recipe.experts(model)
    if not modules:
        raise ValueError(f"ep needs a recipe with experts; {recipe.name} has none")
    group = world.submesh(Axis.EP).get_group()
    for path, module in modules.items():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if parameter.shape[0] % degree:
                raise ValueError(f"ep degree ({degree}) must divide the experts ({parameter.shape[0]}) of {path}")
            module.register_parameter(name, nn.Parameter(cut(parameter, world)))
        module.forward = exchanging(module.forward, group)
    return model


def experts(model: nn.Module, recipe: Recipe, world: World) -> dict[str, nn.Module]:
    """The modules whose parameters differ from rank to rank of ep, by their name in ``model``; none without ep."""
    return recipe.experts(model) if world.degree(Axis.EP) > 1 else {}


def cut(parameter: nn.Parameter, world: World) -> DTensor:
    """The experts of this rank, of a parameter that holds all of them along dim 0."""
    over_tp = isinstance(parameter, DTensor)
    placements: list[Placement] = [Shard(0), Replicate()] if over_tp else [Shard(0)]
    mesh = world.submesh(Axis.EP, Axis.TP) if over_tp else world.submesh(Axis.EP)
    at = world.layout.coordinates(world.rank)[Axis.EP]
    own = local(parameter.detach()).chunk(world.degree(Axis.EP))[at].clone()
    return DTensor.from_local(own, mesh, placements, run_check=False)


class AllToAll(torch.autograd.Function):
    """Rows to the ranks of a group, ``send[i]`` of them to the i-th; gradients travel back the same way."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup) -> Tensor:
        ctx.send, ctx.receive, ctx.group = send, receive, group
        return swap(rows, send, receive, group)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return swap(gradients[0], ctx.receive, ctx.send, ctx.group), None, None, None


def swap(rows: Tensor, send: list[int], receive: list[int], group: dist.ProcessGroup) -> Tensor:
    """On every rank of ``group``: what the others send, in the order of ranks."""
    out = rows.new_empty(sum(receive), *rows.shape[1:])
    dist.all_to_all_single(out, rows.contiguous(), receive, send, group=group)  # gradients may be strided
    return out


def exchanging(forward: Forward, group: dist.ProcessGroup) -> Forward:
    """``forward`` of all experts, where each rank of ``group`` computes its own for the tokens of all ranks."""
    size = dist.get_world_size(group)

    def exchanged(tokens: Tensor, counts: Tensor) -> Tensor:
        mine = len(counts) // size
        arriving = torch.empty_like(counts)
        dist.all_to_all_single(arriving, counts, group=group)
        by_rank = arriving.view(size, mine)  # [rank that sends, expert of mine]
        send, receive = counts.view(size, mine).sum(1).tolist(), by_rank.sum(1).tolist()
        rows = cast(Tensor, AllToAll.apply(tokens, send, receive, group))  # type: ignore[no-untyped-call]
        # They come rank by rank, and within a rank expert by expert.
        owner = torch.arange(mine, device=rows.device).repeat(size).repeat_interleave(by_rank.flatten())
        order = owner.argsort(stable=True)
        out = forward(rows[order], by_rank.sum(0))
        return cast(Tensor, AllToAll.apply(out[order.argsort()], receive, send, group))  # type: ignore[no-untyped-call]

    return exchanged


@torch.no_grad()
def reduce(modules: Iterable[nn.Module], world: World) -> None:
    """On every rank, after backward: the mean of the experts' gradients over all data ranks.

    The tokens of all ranks of ep have come to an expert, so its gradient is a sum over these already, and only what
    dp_replicate has copied is added up; dp_shard has done that.
    """
    replicas = world.degree(Axis.DP_REPLICATE) if world.degree(Axis.DP_SHARD) == 1 else 1
    for parameter in (parameter for module in modules for parameter in module.parameters()):
        if parameter.grad is None:
            continue
        gradient = local(parameter.grad)
        if replicas > 1:
            dist.all_reduce(gradient, group=world.submesh(Axis.DP_REPLICATE).get_group())
        gradient.div_(replicas * summed(world))


def summed(world: World) -> int:
    """Data ranks over which an expert's gradient has been added up, where those of other parameters are averaged."""
    return world.degree(Axis.EP)
