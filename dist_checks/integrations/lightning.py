"""The probe in Lightning: ``Trainer(callbacks=[DistChecksCallback()])``.

Lightning hands the optimizer a closure that runs forward and backward and clips: gradients are seen before it does.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from dist_checks.probe.own import OwnLoop, before_loaders
from dist_checks.probe.probe import Probe

NAMES = ("lightning.pytorch", "pytorch_lightning")
"""One library, under two names whose classes do not mix: that counts which the script has imported."""


def _lightning() -> Any:
    names = sorted(NAMES, key=lambda name: name not in sys.modules)
    try:
        return importlib.import_module(names[0])
    except ImportError:
        return importlib.import_module(names[1])


class DistChecksCallback(_lightning().Callback):  # type: ignore[misc]  # under either name
    """On every rank; inert unless $DIST_CHECKS_TRACE is set."""

    def __init__(self) -> None:
        self._probe: OwnLoop | None = None
        self._losses: list[float] = []
        self._steps = 0
        before_loaders()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The model is wrapped and the optimizers made by now."""
        probe = Probe.attach(trainer.strategy.model, trainer.optimizers)
        if isinstance(probe, OwnLoop):
            self._probe, self._steps = probe, trainer.global_step

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Samples are told by what they are: its loader has been opened before anybody is asked."""
        if self._probe is not None:
            self._probe.next_batch(batch)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Reduced, and with the loss scale divided out."""
        if self._probe is not None:
            self._probe.gradients()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """After each micro-batch, whether the optimizer has stepped or not."""
        if self._probe is None:
            return
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if loss is not None:
            self._losses.append(float(loss))
        if trainer.global_step == self._steps:
            return
        self._steps = trainer.global_step
        # What Lightning steps by itself it has divided by the number of micro-batches.
        parts = 1 if pl_module.automatic_optimization else len(self._losses)
        self._probe.step(loss=sum(self._losses) / parts if self._losses else None)
        self._losses.clear()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._probe is not None:
            self._probe.close()
            self._probe = None
