"""fused: fused kernels of attention and optimizer; off means the plain ones, in every rung."""

from __future__ import annotations

import torch
from torch import nn
from torch.backends import cuda

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.worker.mesh import World


def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    """Which kernels ``scaled_dot_product_attention`` may use, on whatever device.

    For the whole process, not around forward: activation checkpointing calls it in backward as well. Where fused
    kernels are asked for and none can be used, torch raises.
    """
    on = Axis.FUSED in world.rung.setting
    cuda.enable_flash_sdp(on)
    cuda.enable_mem_efficient_sdp(on)
    cuda.enable_cudnn_sdp(on)
    # No accelerator has a fused kernel for float64: there the optimizer alone is fused.
    cuda.enable_math_sdp(not on or (world.device.type != "cpu" and world.rung.precision == "fp64"))
    return model


def choose_kernels(optimizer: torch.optim.Optimizer, world: World) -> None:
    """Before the first step: one kernel for all parameters, or one operation after the other for each of them."""
    on = Axis.FUSED in world.rung.setting
    for group in optimizer.param_groups:
        if on and "fused" not in group:
            raise ValueError(f"fused needs an optimizer with fused kernels; {type(optimizer).__name__} has none")
        for key, value in (("fused", on), ("foreach", False)):
            if key in group:
                group[key] = value
    if on:
        # As the constructor does: the kernel itself leaves out a step whose gradients are not finite.
        optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]
