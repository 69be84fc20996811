"""The probe in torchtitan: ``watch(trainer).train()``.

Its Trainer loads a checkpoint when it starts to train: the probe is attached at the first step. Gradients are seen
where the Trainer computes their norm, samples are told by what they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dist_checks.probe.names import STAGE
from dist_checks.probe.own import OwnLoop
from dist_checks.probe.probe import FOLDER, Probe

T = TypeVar("T")

IGNORE = -100


def watch(trainer: T) -> T:
    """On every rank, between building the Trainer and ``train()``: the same Trainer, which is watched from now on where
    $DIST_CHECKS_TRACE is set. Methods of a class derived from torchtitan's are kept."""
    if os.environ.get(FOLDER):
        _Watch(trainer)
    return trainer


class _Watch:
    """Around three methods of a Trainer, which torchtitan has had under these names since 0.2."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._probe: OwnLoop | None = None
        self._attached = False
        self._train_step, trainer.train_step = trainer.train_step, self._step
        self._forward_backward, trainer.forward_backward_step = trainer.forward_backward_step, self._passes
        self._prepare, trainer.post_dataloading_process = trainer.post_dataloading_process, self._prepared

    def _attach(self) -> None:
        self._attached = True
        parts = self._trainer.model_parts
        # A rank of a pipeline may hold several stages, whose names are those of the whole model.
        model = parts[0] if len(parts) == 1 else nn.ModuleDict({f"{STAGE}{at}": part for at, part in enumerate(parts)})
        probe = Probe.attach(model, list(self._trainer.optimizers))
        self._probe = probe if isinstance(probe, OwnLoop) else None

    def _step(self, batches: Any) -> Any:
        if not self._attached:
            self._attach()
        self._sum: float | None = None
        self._targets = 0
        done = self._train_step(batches)  # raises where data ran out: then no step was taken
        if self._probe is not None:
            self._probe.step(loss_sum=self._sum, targets=None if self._sum is None else self._targets)
        return done

    def _passes(self, *, input_dict: Any, labels: Any, global_valid_tokens: Tensor, **more: Any) -> Any:
        """Forward and backward of a micro-batch, or of all those of a pipeline, which come in a list."""
        if self._probe is not None:
            several: Iterable[Any] = (
                zip(input_dict, labels, strict=True) if isinstance(labels, list) else [(input_dict, labels)]
            )
            for batch in several:
                self._probe.next_batch(batch)
        loss = self._forward_backward(
            input_dict=input_dict, labels=labels, global_valid_tokens=global_valid_tokens, **more
        )
        if self._probe is not None and getattr(self._trainer, "pp_has_last_stage", True):
            # What it returns is a sum over the targets of this rank, divided by the number of all.
            self._sum = (self._sum or 0.0) + float(_here(loss.detach())) * float(_here(global_valid_tokens))
        return loss

    def _prepared(self, input_dict: Any, labels: Any) -> Any:
        """Cuts a micro-batch up for context parallelism."""
        prepared = self._prepare(input_dict, labels)
        if self._probe is not None:
            self._targets += int((_here(prepared[1]) != IGNORE).sum())
        return prepared


def _here(x: Tensor) -> Tensor:
    """What this rank has of it: a probe asks no other."""
    return x._local_tensor if isinstance(x, DTensor) else x
