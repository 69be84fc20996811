"""What can go wrong with the state of one rank, the last one: each operator is a mistake that only this rank makes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dist_checks.axes import SPEC, Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker import axes as applying
from dist_checks.worker.loop import Trainer
from dist_checks.worker.mesh import World
from dist_checks.worker.mutations import loops
from dist_checks.worker.mutations.loops import Method

WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
MATRICES = (".experts.up", ".attention.o.weight")
"""What weights are changed of: one that is cut where the axis cuts any."""


def is_last(rung: Rung) -> bool:
    return int(os.environ.get("RANK", "0")) == rung.layout.world_size - 1


def local(parameter: Tensor) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter.detach()


def after_axes(change: Callable[[nn.Module, World], None]) -> None:
    """``change`` the model when every axis has been applied."""
    right = applying.apply_all

    def apply_all(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        model = right(model, recipe, world)
        with torch.no_grad():
            change(model, world)
        return model

    applying.apply_all = apply_all


WRAPPERS = ("module", "_orig_mod", "_checkpoint_wrapped_module")


def named(model: nn.Module) -> dict[str, nn.Parameter]:
    """By their names in the model of one device."""

    def plain(name: str) -> str:
        parts = name.split(".")
        return ".".join(part for part in parts if part not in WRAPPERS and not part.startswith("_pipeline_stage_"))

    return {plain(name): parameter for name, parameter in model.named_parameters()}


def matrix_of(model: nn.Module) -> Tensor:
    """(rows, columns): what this rank has of the first matrix of those that are changed."""
    found = (parameter for end in MATRICES for name, parameter in named(model).items() if name.endswith(end))
    weights = local(next(found))
    return weights.flatten(0, -2)


def scaled(factor: float, name: str, rung: Rung) -> None:
    """The reduced gradient of one tensor, on every rank alike, times ``factor``."""

    def make(right: Method) -> Method:
        def reduce(self: Trainer) -> None:
            right(self)
            parameter = named(self.model).get(name)
            if parameter is not None and parameter.grad is not None:
                with torch.no_grad():
                    parameter.grad.mul_(factor)

        return reduce

    if rung.layout.world_size > 1:
        loops.replace(reduce=make)


def flip_bit(axis: Axis, rung: Rung) -> None:
    """The lowest bit of one weight."""

    def change(model: nn.Module, world: World) -> None:
        weights = matrix_of(model)
        weights[:1, :1].view(WORDS[weights.element_size()]).bitwise_xor_(1)

    if is_last(rung):
        after_axes(change)


def transpose_shard(axis: Axis, rung: Rung) -> None:
    """The rank's part of a matrix, read by columns instead of rows."""

    def change(model: nn.Module, world: World) -> None:
        weights = matrix_of(model)
        weights.copy_(weights.t().reshape(weights.shape).clone())

    if is_last(rung):
        after_axes(change)


def swap_halves(axis: Axis, rung: Rung) -> None:
    """The first half of the rows that the rank has of a matrix, and the second, change places."""

    def change(model: nn.Module, world: World) -> None:
        weights = matrix_of(model)
        half = len(weights) // 2
        weights[: 2 * half] = weights[: 2 * half].roll(half, 0).clone()

    if is_last(rung):
        after_axes(change)


def swap_shards(axis: Axis, rung: Rung) -> None:
    """The first two ranks of each group have each other's part of a matrix."""

    def change(model: nn.Module, world: World) -> None:
        line = next(ranks for ranks in rung.layout.lines(axis) if world.rank in ranks)
        if world.rank not in line[:2]:
            return
        weights = matrix_of(model)
        peer = line[1] if world.rank == line[0] else line[0]
        mine, other = weights.contiguous().clone(), torch.empty(weights.shape, dtype=weights.dtype)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, other, peer)]):
            work.wait()
        weights.copy_(other)

    after_axes(change)


def skip_step(axis: Axis, rung: Rung) -> None:
    """The rank leaves out the optimizer's step once."""

    def make(right: Method) -> Method:
        count = 0

        def update(self: Trainer) -> bool:
            nonlocal count
            count += 1
            return False if count == 2 else bool(right(self))

        return update

    if is_last(rung):
        loops.replace(update=make)


def other_rate(axis: Axis, rung: Rung) -> None:
    """Another learning rate, by one part in a hundred."""

    def make(right: Method) -> Method:
        def set_learning_rate(self: Trainer, index: int) -> None:
            right(self, index)
            for group in self.optimizer.param_groups:
                group["lr"] *= 1.01

        return set_learning_rate

    if is_last(rung):
        loops.replace(set_learning_rate=make)


def other_batch(axis: Axis, rung: Rung) -> None:
    """The samples of the next step."""

    def make(right: Method) -> Method:
        def read(self: Trainer, index: int) -> Any:
            return right(self, index + 1)

        return read

    if is_last(rung):
        loops.replace(read=make)


def other_loss_scale(axis: Axis, rung: Rung) -> None:
    """The gradients of this rank are multiplied by another loss scale than they are divided by."""

    def make(right: Method) -> Method:
        def normalise(self: Trainer, loss_sum: Tensor, total: int) -> Tensor:
            scaled: Tensor = right(self, loss_sum, total) * 2
            return scaled

        return normalise

    if is_last(rung):
        loops.replace(normalise=make)


def other_random_state(axis: Axis, rung: Rung) -> None:
    """Another seed for dropout where ranks must draw the same masks, that of rank 0 where they must draw others."""
    shares = bool(set(rung.layout.degrees) & {axis, *SPEC[axis].needs} & {Axis.TP, Axis.CP})

    def make(right: Method) -> Method:
        def step(self: Trainer, index: int) -> None:
            if index == 0:
                torch.manual_seed(12345 if shares else (rung.seed << 20) + 1)
            right(self, index)

        return step

    if is_last(rung):
        loops.replace(step=make)


OPERATORS: Mapping[str, Callable[[Axis, Rung], Any]] = {
    "flip_bit": flip_bit,
    "transpose_shard": transpose_shard,
    "swap_halves": swap_halves,
    "swap_shards": swap_shards,
    "skip_step": skip_step,
    "other_rate": other_rate,
    "other_batch": other_batch,
    "other_loss_scale": other_loss_scale,
    "other_random_state": other_random_state,
}
