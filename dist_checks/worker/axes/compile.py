"""compile: torch.compile of each block, with the number of samples left open, since micro-batches are uneven."""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.worker.mesh import World


def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    """The forward of each block is compiled, not the block: hooks (of checkpointing, of sharding, of the probe) stay
    outside of the graph and names stay those of the single. Blocks that are alike share one graph."""
    if Axis.COMPILE not in world.rung.setting:
        return model
    if reason := missing():
        raise ValueError(f"compile {reason}")
    blocks = recipe.blocks(model)
    if not blocks:
        raise ValueError(f"compile needs a recipe with blocks; {recipe.name} has none")
    import torch._inductor.config  # seconds, for the rungs that need it

    # In this process: a pool of compile workers would outlive the rank, and starting one forks.
    torch._inductor.config.compile_threads = 1
    for block in blocks.values():
        block.register_forward_pre_hook(leave_open)
        block.forward = compiled(block)
    return model


def compiled(block: nn.Module) -> Any:
    """What stands in for the forward of ``block``."""
    return torch.compile(block.forward)


def leave_open(block: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Before a block runs: one graph for any number of samples but one, instead of one and then another."""
    x, *others = inputs
    if isinstance(x, AsyncCollectiveTensor):
        # What tp has not waited for yet. Given to a compiled function, it makes the backward of the collective fail
        # (tests/upstream); a copy is a plain tensor.
        x = x.clone()
    if isinstance(x, torch.Tensor):
        torch._dynamo.maybe_mark_dynamic(x, 0)
    return (x, *others)


def paused() -> AbstractContextManager[object]:
    """Inside, what has been compiled runs as it was written."""
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance


def missing() -> str:
    """What torch.compile lacks on this machine; empty where it has what it needs."""
    if torch.accelerator.is_available():
        from torch.utils._triton import has_triton

        return "" if has_triton() else "needs triton for the accelerator, and there is none"
    compiler = os.environ.get("CXX", "g++")
    return "" if shutil.which(compiler) else f"needs a C++ compiler, and there is no {compiler} on the path"
