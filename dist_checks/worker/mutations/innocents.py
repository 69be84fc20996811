"""What looks like a mistake and is none: planted like a fault, and nothing may be found."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker import rng
from dist_checks.worker.loop import Trainer
from dist_checks.worker.mutations import loops
from dist_checks.worker.mutations.loops import Method

PIECES = 4
"""In which the sum over tokens is added up, in an order that is drawn again every time."""


class Unordered(torch.autograd.Function):
    """A linear layer whose weight gradient is added up in another order each time, as by atomics on an accelerator."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.bias = None if bias is None else bias.dtype
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        (gradient,) = gradients
        x, weight = ctx.saved_tensors
        rows, inputs = gradient.flatten(0, -2), x.flatten(0, -2).to(gradient.dtype)
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(_noise()))
        total = torch.zeros(weight.shape, dtype=torch.promote_types(gradient.dtype, torch.float32))
        for piece in order.chunk(PIECES):
            total += (rows[piece].t() @ inputs[piece]).to(total.dtype)
        bias = None if ctx.bias is None else rows.sum(0).to(ctx.bias)
        back = (gradient @ weight.to(gradient.dtype)).to(x.dtype)
        return back, total.to(gradient.dtype).to(weight.dtype), bias


def _noise() -> int:
    """Of no random state that a loop has, and another number each time."""
    return int.from_bytes(os.urandom(6), "big")


def unordered_sums(rung: Rung) -> None:
    """Not on one device: nothing there is drawn again, and a rerun of the single must give the same bits on a CPU."""
    if rung.layout.world_size == 1:
        return
    right = nn.Linear.forward

    def forward(self: nn.Linear, input: Tensor) -> Tensor:
        if isinstance(input, DTensor) or isinstance(self.weight, DTensor) or not torch.is_grad_enabled():
            return right(self, input)
        out: Tensor = Unordered.apply(input, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return out

    nn.Linear.forward = forward  # type: ignore[method-assign]  # that is what planting means


def reversed_micro_batches(rung: Rung) -> None:
    """The last micro-batch of a step comes first."""

    def make(right: Method) -> Method:
        def read(self: Trainer, index: int) -> tuple[int, list[list[int]]]:
            epoch, micro_batches = right(self, index)
            return epoch, micro_batches[::-1]

        return read

    loops.replace(read=make)


def local_norm_printed(rung: Rung) -> None:
    """Each rank prints the norm of its own shards, and clips by the right one."""

    def make(right: Method) -> Method:
        def printed_norm(self: Trainer, norm: Tensor) -> float:
            found = (p.grad for p in self.parameters() if p.grad is not None)
            own = [(x.to_local() if isinstance(x, DTensor) else x).norm() for x in found]
            return float(torch.stack(own).norm())

        return printed_norm

    loops.replace(printed_norm=make)


def seed_of_each_rank(rung: Rung) -> None:
    """Replicas are made from seeds of their own, and DDP hands those of rank 0 round."""
    right, rank = rng.seed_model, int(os.environ.get("RANK", "0"))
    rng.seed_model = lambda rung: right(replace(rung, seed=rung.seed + rank))


def loss_times_cp(rung: Rung) -> None:
    """The loss is multiplied by cp, and gradients are divided by it again."""
    degree = rung.setting.degree(Axis.CP)

    def times(right: Method) -> Method:
        def normalise(self: Trainer, loss_sum: Tensor, total: int) -> Tensor:
            scaled: Tensor = right(self, loss_sum, total) * degree
            return scaled

        return normalise

    def divided(right: Method) -> Method:
        def reduce(self: Trainer) -> None:
            right(self)
            with torch.no_grad():
                for parameter in self.model.parameters():
                    if parameter.grad is not None:
                        parameter.grad.div_(degree)

        return reduce

    loops.replace(normalise=times, reduce=divided)


def one_batch_printed(rung: Rung) -> None:
    """What is printed is the loss of the last micro-batch alone, on each rank its own."""
    last: list[tuple[float, int]] = []

    def remembered(right: Method) -> Method:
        def loss_of(self: Trainer, output: Tensor, batch: Any) -> Tensor:
            loss_sum: Tensor = right(self, output, batch)
            last[:] = [(loss_sum.item(), batch.count)]
            return loss_sum

        return loss_of

    def printed(right: Method) -> Method:
        def mean_loss(self: Trainer, loss_sum: float, total: int) -> float:
            right(self, loss_sum, total)  # a collective, which the other ranks wait for
            (found, count) = last[0]
            return found / count

        return mean_loss

    loops.replace(loss_of=remembered, mean_loss=printed)


def local_loss_printed(rung: Rung) -> None:
    """Each rank prints the loss of the samples that it has read."""
    seen = [1]

    def counted(right: Method) -> Method:
        def count_targets(self: Trainer, targets: int) -> int:
            seen[0] = targets
            return int(right(self, targets))

        return count_targets

    def printed(right: Method) -> Method:
        def mean_loss(self: Trainer, loss_sum: float, total: int) -> float:
            right(self, loss_sum, total)
            return loss_sum / seen[0]

        return mean_loss

    loops.replace(count_targets=counted, mean_loss=printed)


INNOCENTS: Mapping[str, Callable[[Rung], None]] = {
    "unordered_sums": unordered_sums,
    "reversed_micro_batches": reversed_micro_batches,
    "local_norm_printed": local_norm_printed,
    "seed_of_each_rank": seed_of_each_rank,
    "loss_times_cp": loss_times_cp,
    "one_batch_printed": one_batch_printed,
    "local_loss_printed": local_loss_printed,
}
"""By what they do; which public report each of them is: ``selftest/innocents.py``."""
