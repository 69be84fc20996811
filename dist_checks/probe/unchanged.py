"""``dist-checks attach -- train.py ...``: the probe in a script of which no line is changed.

It is attached when a module that holds all that an optimizer steps is first called to train, so to what wraps the model
(DDP, a DeepSpeed engine); steps are those of the optimizer, the loss is what backward is called on.
"""

from __future__ import annotations

import itertools
import os
import runpy
import sys
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from dist_checks.probe import own
from dist_checks.probe.probe import FOLDER


class _Watch:
    """From before the script begins; gives way to the probe's own hooks once that is attached."""

    def __init__(self) -> None:
        self.optimizers: weakref.WeakValueDictionary[int, Optimizer] = weakref.WeakValueDictionary()  # as they came
        self.loss: float | None = None
        self.scaled = False
        self._probe: own.OwnLoop | None = None
        self._stepping: list[Optimizer] = []
        self._stepped: set[int] = set()
        self._share = 1.0
        self._numbers = itertools.count()
        self._init, self._call = Optimizer.__init__, nn.Module.__call__
        self._backward, self._scale = torch.autograd.backward, torch.amp.GradScaler.scale
        watch = self

        def made(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            self._init(optimizer, *args, **kwargs)
            watch.optimizers[next(watch._numbers)] = optimizer

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if watch._probe is None and module.training and torch.is_grad_enabled():
                watch._look_at(module)
            return self._call(module, *args, **kwargs)

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            watch._saw_loss(tensors)
            return self._backward(tensors, *args, **kwargs)

        def scale(scaler: Any, outputs: Any) -> Any:
            watch.scaled = watch.scaled or scaler.is_enabled()
            return self._scale(scaler, outputs)

        Optimizer.__init__ = made  # type: ignore[assignment,method-assign]
        nn.Module.__call__ = called  # type: ignore[method-assign]
        torch.autograd.backward = backward
        torch.amp.GradScaler.scale = scale  # type: ignore[assignment,method-assign]
        register_optimizer_step_post_hook(self._after_step)

    def _look_at(self, module: Any) -> None:
        if hasattr(module, "is_gradient_accumulation_boundary"):  # a DeepSpeed engine, which has its optimizer
            self._attach(module, [module.optimizer])
            return
        held = {id(parameter) for parameter in module.parameters()}
        made = [self.optimizers[number] for number in sorted(self.optimizers)]
        found = [optimizer for optimizer in made if _parameters(optimizer) and _parameters(optimizer) <= held]
        found = [optimizer for optimizer in found if not _gathers(optimizer, found)]
        if found:
            self._attach(module, found)

    def _attach(self, module: nn.Module, optimizers: list[Any]) -> None:
        nn.Module.__call__ = self._call  # type: ignore[method-assign]
        probe = own.attach(module, optimizers)
        if isinstance(probe, own.OwnLoop):
            engine = hasattr(module, "is_gradient_accumulation_boundary")
            self._probe, self._stepping = probe, [] if engine else optimizers  # an engine's step is more than theirs
            self._share = _share(module)
            probe.after_engine = self._end_step

    def _saw_loss(self, tensors: Any) -> None:
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        for root in roots:
            if self._probe is not None and isinstance(root, Tensor) and root.numel() == 1:
                self.loss = (self.loss or 0.0) + float(root.detach())

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._probe is None or not any(optimizer is each for each in self._stepping):
            return
        self._stepped.add(id(optimizer))
        if len(self._stepped) == len(self._stepping):
            self._end_step()

    def _end_step(self) -> None:
        assert self._probe is not None
        loss = None if self.scaled else self.loss  # by what it was scaled is not known here
        self._stepped.clear()
        self.loss = None
        self._probe.step_seen(None if loss is None else loss * self._share)


def _parameters(optimizer: Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


def _share(module: nn.Module) -> float:
    """How much more the loss of a rank counts than in a mean over ranks: 1, unless FSDP2 was told what to divide by, as
    by torchtitan, whose ranks divide by the targets of all of them and add up."""
    for each in module.modules():
        for group in each._get_fsdp_state()._fsdp_param_groups if isinstance(each, FSDPModule) else ():
            if group.gradient_divide_factor:
                return float(group.mesh_info.mesh.size()) / group.gradient_divide_factor
    return 1.0


def _gathers(optimizer: Optimizer, found: list[Optimizer]) -> bool:
    """Whether it has others in a list, which it steps, as torchtitan's does: those are enough."""
    inner = [each for value in vars(optimizer).values() if isinstance(value, list | tuple) for each in value]
    return any(each is other for each in inner for other in found)


def watch_optimizers() -> None:
    """Before the script is run. Does nothing where nobody asks for a trace."""
    if os.environ.get(FOLDER):
        own.before_loaders()
        _Watch()


def main(argv: list[str]) -> None:
    """``python -m dist_checks.probe.unchanged train.py ...`` or ``... -m package.train ...``."""
    watch_optimizers()
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = argv
        sys.path[0] = str(Path(argv[0]).absolute().parent)
        runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
