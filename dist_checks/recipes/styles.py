"""The tensor-parallel styles that torch lacks: what every rank computes whole, with DTensor parameters."""

from __future__ import annotations

from functools import wraps
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ParallelStyle, SequenceParallel
from torch.nn.utils.stateless import _reparametrize_module

from dist_checks.recipes.base import local


class ReplicatedNorm(SequenceParallel):
    """SequenceParallel of a sequence that is not cut: plain tensors in and out, weights Replicate on the tp mesh.

    Weights left plain would do for the forward pass, but foreach optimizers, the loss scaler and the gradient norm
    refuse a mixture of DTensors and plain tensors.
    """

    def __init__(self) -> None:
        super().__init__(use_local_output=True)
        self.sequence_sharding = (Replicate(),)  # type: ignore[assignment]  # declared by torch as Shard only


class ReplicatedParameters(ParallelStyle):
    """Plain tensors in and out, parameters Replicate on the tp mesh: for modules that take their local part."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters(recurse=False)):
            # Each rank keeps its own copy: where they differ, that is to be seen, not to be mended by a broadcast.
            whole = DTensor.from_local(parameter.detach(), device_mesh, [Replicate()], run_check=False)
            module.register_parameter(name, nn.Parameter(whole))
        return module


class TakenWhole(ReplicatedParameters):
    """The same for modules that know nothing of DTensors: during forward, their parameters are plain tensors."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module = super()._apply(module, device_mesh)
        original = module.forward

        @wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            plain = {name: local(parameter) for name, parameter in module.named_parameters(recurse=False)}
            with _reparametrize_module(module, plain):
                return original(*args, **kwargs)

        module.forward = forward
        return module
