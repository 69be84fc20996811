"""accum: several micro-batches for one optimizer step; gradients are reduced over data ranks with the last one only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from dist_checks.recipes.base import Recipe
from dist_checks.worker.mesh import World


def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    """Nothing to do to a model: the loop accumulates."""
    return model


@contextmanager
def reduction(model: nn.Module, last: bool) -> Iterator[None]:
    """Around forward and backward of a micro-batch: gradients are reduced if it is the ``last`` of its step.

    Forward belongs inside: that is where DDP decides whether it will reduce.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last)
        yield
    elif isinstance(model, DistributedDataParallel) and not last:
        with model.no_sync():
            yield
    else:
        yield
