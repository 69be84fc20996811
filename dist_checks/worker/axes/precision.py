"""precision: float64 and float32 throughout; bf16 and fp16 by autocast over float32 weights, fp16 with loss scaling;
bfloat16 parameters; parameters that FSDP2 casts to bfloat16."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe, local
from dist_checks.worker.mesh import World

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}

SCALE_POWER = 12
"""Losses are scaled by 2 to this at first. Torch and DeepSpeed begin with 16: there a data rank, whose own gradients
are larger than their mean, may overflow in the first step where one device does not, and nothing can be compared."""


def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    """Weights and buffers start as float32 whatever the precision, so every rung starts from the same numbers."""
    match world.rung.precision:
        case "fp64":
            return model.double()
        case "bf16_pure":
            return model.bfloat16()
    return model


def policy(world: World) -> MixedPrecisionPolicy:
    """What FSDP2 casts: for bf16_fsdp a module's parameters and inputs; gradients are reduced and kept in float32."""
    if world.rung.precision != "bf16_fsdp":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def autocast(world: World) -> AbstractContextManager[object]:
    """Around each forward pass and its loss. Left before the next one: weights cast to 16 bits must not be kept."""
    dtype = AUTOCAST.get(world.rung.precision)
    return torch.autocast(world.device.type, dtype=dtype) if dtype else nullcontext()


class AgreeingScaler(torch.amp.GradScaler):
    """A loss scaler whose ranks skip a step together.

    The plain one leaves that to DTensor, which looks at the placements of the first gradient only: where that one is
    replicated, the ranks of shards that overflowed would skip the step alone; and it refuses gradients of two meshes.
    """

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        super().unscale_(optimizer)
        for found in self._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values():
            dist.all_reduce(found, op=dist.ReduceOp.MAX)

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool
    ) -> dict[torch.device, Tensor]:
        """Each rank those that it holds; what was found becomes common to all afterwards."""
        parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
        gradients = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
        with torch.no_grad():
            torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inv_scale)
        return {found_inf.device: found_inf}


def make_scaler(world: World) -> torch.amp.GradScaler | None:
    """The loss scaler of fp16; None for the other precisions, which have the range of float32."""
    if world.rung.precision not in ("fp16", "fp16_params"):
        return None
    sharded = any(world.degree(axis) > 1 for axis in (Axis.DP_SHARD, Axis.EP, Axis.TP, Axis.PP))
    # Under DDP alone every rank holds every gradient, so all find the same overflows.
    return (AgreeingScaler if sharded else torch.amp.GradScaler)(world.device.type, init_scale=2.0**SCALE_POWER)


def steady_norms(model: nn.Module, device: torch.device) -> None:
    """For a model whose parameters have 16 bits: the gradient of a LayerNorm's bias is a sum over all tokens, which
    torch adds up in 16 bits on a CPU (kernels of accelerators use float32), up to half of it lost in 4096 tokens: see
    ``tests/upstream``. So norms are computed in float32 there, and their results rounded."""
    if device.type == "cpu":
        for module in model.modules():
            if isinstance(module, nn.LayerNorm):
                module.forward = partial(_layer_norm, module)  # type: ignore[method-assign]


def _layer_norm(norm: nn.LayerNorm, x: Tensor) -> Tensor:
    weight, bias = (None if p is None else p.float() for p in (norm.weight, norm.bias))
    return F.layer_norm(x.float(), norm.normalized_shape, weight, bias, norm.eps).to(x.dtype)
