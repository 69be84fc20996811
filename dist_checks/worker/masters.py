"""A model in 16 bits of which the optimizer steps a float32 copy: DeepSpeed's bf16 and fp16 on one device."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from dist_checks.probe.header import parameters_of
from dist_checks.probe.holding import Holding
from dist_checks.worker.axes import precision
from dist_checks.worker.loop import Trainer

DTYPE = {"bf16_params": torch.bfloat16, "fp16_params": torch.float16}


class MasterTrainer(Trainer):
    """Singles only. What is recorded as weights, gradients and state is of the float32 copy."""

    def build(self, model: nn.Module) -> None:
        self.masters = copy.deepcopy(model).to(self.world.device)
        super().build(model)
        precision.steady_norms(self.model, self.world.device)
        self.model.to(DTYPE[self.rung.precision])

    def make_optimizer(self) -> torch.optim.Optimizer:
        return self.recipe.optimizer(self.masters, self.train)

    def holding(self) -> Holding:
        return Holding(self.model, [self.optimizer], parameters_of(self.masters))

    def parameters(self) -> list[nn.Parameter]:
        return list(self.masters.parameters())

    def autocast(self) -> AbstractContextManager[object]:
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        with torch.no_grad():
            for master, parameter in zip(self.masters.parameters(), self.model.parameters(), strict=True):
                if parameter.grad is not None:
                    gradient = parameter.grad.float()
                    master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                    parameter.grad = None

    @torch.no_grad()
    def update(self) -> bool:
        skipped = super().update()
        for master, parameter in zip(self.masters.parameters(), self.model.parameters(), strict=True):
            parameter.copy_(master)
        return skipped
