"""What can go wrong with the state of one rank, the last one: each operator is a mistake that only this rank makes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker import axes as applying
from dist_checks.worker.loop import Trainer
from dist_checks.worker.mesh import World

WORDS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
MATRIX = "blocks.0.attention.o.weight"
"""What shards are changed of: there is one in every recipe that is built in."""


def is_last(rung: Rung) -> bool:
    return int(os.environ.get("RANK", "0")) == rung.layout.world_size - 1


def local(parameter: Tensor) -> Tensor:
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter.detach()


def after_axes(change: Callable[[nn.Module], None]) -> None:
    """``change`` the model when every axis has been applied."""
    right = applying.apply_all

    def apply_all(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        model = right(model, recipe, world)
        with torch.no_grad():
            change(model)
        return model

    applying.apply_all = apply_all


def matrix_of(model: nn.Module) -> Tensor:
    return next(local(parameter) for name, parameter in model.named_parameters() if MATRIX in plain(name))


def plain(name: str) -> str:
    for part in ("module.", "_orig_mod.", "_checkpoint_wrapped_module."):
        name = name.replace(part, "")
    return name


def scaled(factor: float, name: str, rung: Rung) -> None:
    """The reduced gradient of one tensor, on every rank alike, times ``factor``."""
    right = Trainer.reduce

    def reduce(self: Trainer) -> None:
        right(self)
        for own, parameter in self.model.named_parameters():
            if plain(own) == name and parameter.grad is not None:
                with torch.no_grad():
                    parameter.grad.mul_(factor)

    if rung.layout.world_size > 1:
        Trainer.reduce = reduce  # type: ignore[method-assign]  # that is what planting means


def flip_bit(axis: Axis, rung: Rung) -> None:
    """The lowest bit of one weight."""

    def change(model: nn.Module) -> None:
        weights = matrix_of(model)
        weights.view(-1)[:1].view(WORDS[weights.element_size()]).bitwise_xor_(1)

    if is_last(rung):
        after_axes(change)


def transpose_shard(axis: Axis, rung: Rung) -> None:
    """The rank's part of a matrix, read by columns instead of rows."""

    def change(model: nn.Module) -> None:
        weights = matrix_of(model)
        weights.copy_(weights.t().reshape(weights.shape).clone())

    if is_last(rung):
        after_axes(change)


def swap_shards(axis: Axis, rung: Rung) -> None:
    """Of a sharded matrix two parts change places: on this rank, the first half of its rows and the second."""

    def change(model: nn.Module) -> None:
        weights = matrix_of(model)
        half = len(weights) // 2
        if half:
            weights[: 2 * half] = weights[: 2 * half].roll(half, 0).clone()

    if is_last(rung):
        after_axes(change)


def skip_step(axis: Axis, rung: Rung) -> None:
    """The rank leaves out the optimizer's step once."""
    right, count = Trainer.update, 0

    def update(self: Trainer) -> bool:
        nonlocal count
        count += 1
        return False if count == 2 else right(self)

    if is_last(rung):
        Trainer.update = update  # type: ignore[method-assign]  # that is what planting means


def other_rate(axis: Axis, rung: Rung) -> None:
    """Another learning rate, by one part in a hundred."""
    right = Trainer.set_learning_rate

    def set_learning_rate(self: Trainer, index: int) -> None:
        right(self, index)
        for group in self.optimizer.param_groups:
            group["lr"] *= 1.01

    if is_last(rung):
        Trainer.set_learning_rate = set_learning_rate  # type: ignore[method-assign]


def other_batch(axis: Axis, rung: Rung) -> None:
    """The samples of the next step."""
    right = Trainer.read

    def read(self: Trainer, index: int) -> tuple[int, list[list[int]]]:
        return right(self, index + 1)

    if is_last(rung):
        Trainer.read = read  # type: ignore[method-assign]


def other_loss_scale(axis: Axis, rung: Rung) -> None:
    """The gradients of this rank are multiplied by another loss scale than they are divided by."""
    right = Trainer.normalise

    def normalise(self: Trainer, loss_sum: Tensor, total: int) -> Tensor:
        return right(self, loss_sum, total) * 2

    if is_last(rung):
        Trainer.normalise = normalise  # type: ignore[method-assign]


def other_random_state(axis: Axis, rung: Rung) -> None:
    """Another seed for dropout: without dropout nothing is drawn."""
    right = Trainer.step

    def step(self: Trainer, index: int) -> None:
        if index == 0:
            torch.manual_seed(12345)
        right(self, index)

    if is_last(rung):
        Trainer.step = step  # type: ignore[method-assign]


OPERATORS: Mapping[str, Callable[[Axis, Rung], Any]] = {
    "flip_bit": flip_bit,
    "transpose_shard": transpose_shard,
    "swap_shards": swap_shards,
    "skip_step": skip_step,
    "other_rate": other_rate,
    "other_batch": other_batch,
    "other_loss_scale": other_loss_scale,
    "other_random_state": other_random_state,
}
