"""The probe in transformers' Trainer: ``trainer.add_callback(DistChecksCallback())``.

Gradients are seen where the Trainer clips them, or as the optimizer gets them where it does not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback

from dist_checks.probe.own import OwnLoop
from dist_checks.probe.probe import Probe

IGNORE = -100


class DistChecksCallback(TrainerCallback):  # type: ignore[misc]  # transformers is not followed
    """On every rank; inert unless $DIST_CHECKS_TRACE is set."""

    def __init__(self) -> None:
        self._probe: OwnLoop | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The model is wrapped and the optimizer made by now."""
        probe = Probe.attach(given["model"], getattr(given["optimizer"], "optimizer", given["optimizer"]))
        if not isinstance(probe, OwnLoop):
            return
        self._probe = probe
        probe.overhear(given["train_dataloader"])
        self._start()
        # After the probe's own hooks, which look at the model before it is called.
        given["model"].register_forward_hook(self._called, with_kwargs=True)

    def _start(self) -> None:
        self._sum = self._mean = 0.0
        self._targets = self._passes = 0
        self._summed = True

    def _called(self, model: nn.Module, args: Any, given: dict[str, Any], output: Any) -> None:
        """Notes the loss of a micro-batch: a part of the sum over all targets, where the Trainer has counted those."""
        loss = output.get("loss") if isinstance(output, dict) else None
        if not (model.training and torch.is_grad_enabled()) or loss is None:
            return
        items, labels = given.get("num_items_in_batch"), given.get("labels")
        self._passes += 1
        self._mean += float(loss.detach())
        if items is None or labels is None:
            self._summed = False
        else:
            self._sum += float(loss.detach()) * float(items)
            self._targets += int((labels[..., 1:] != IGNORE).sum())

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self._probe is None:
            return
        if self._summed and self._targets:
            self._probe.step(loss_sum=self._sum, targets=self._targets)
        else:
            self._probe.step(loss=self._mean / self._passes if self._passes else None)
        self._start()

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None
