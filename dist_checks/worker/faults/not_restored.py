"""Checkpoints of which a part is not loaded: the run goes on without an error, and trains something else."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker import checkpoint
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer


def optimizer(rung: Rung) -> None:
    def step_on(trainer: Trainer, state: dict[str, Any]) -> None:
        trainer.stepped().state.clear()

    checkpoint.step_on = step_on


def random_state(rung: Rung) -> None:
    def draw_on(trainer: Trainer, states: Mapping[str, Tensor]) -> None:
        pass

    checkpoint.draw_on = draw_on


def schedule(rung: Rung) -> None:
    """The scheduler is made anew, and counts from there."""
    load_progress, set_learning_rate = Trainer.load_progress, Trainer.set_learning_rate
    counted: list[int] = []

    def load(self: Trainer, progress: Mapping[str, Any]) -> None:
        load_progress(self, progress)
        counted.append(self.next_step)

    def set_rate(self: Trainer, index: int) -> None:
        set_learning_rate(self, index - sum(counted))

    Trainer.load_progress, Trainer.set_learning_rate = load, set_rate  # type: ignore[method-assign]


def nothing(rung: Rung) -> None:
    def load(self: Trainer, folder: Path) -> None:
        pass

    Trainer.load = load  # type: ignore[method-assign]  # that is what planting means


def _fault(id: str, title: str, source: str, check: str, plant: Any, **options: Any) -> Fault:
    # With dropout, data ranks draw other masks than one device, and rightly: nothing could be compared.
    other: dict[str, Any] = {"ckpt_act": True} if options else {"dp_replicate": 2}
    return Fault(
        id=id,
        title=title,
        source=source,
        axes=((Axis.RESUME,),),
        check=check,
        plant=plant,
        planted_in={
            "axes": {"resume": ["same"], **other},
            "steps": 4,
            "options": {"samples": 61, **options},
        },
        step=None if check == "engaged" else 1,
    )


FAULTS = (
    _fault(
        "optimizer_not_restored",
        "the optimizer starts again without moments and steps: the loss hides it after a while",
        "a checkpoint of weights only",
        "resume",
        optimizer,
    ),
    _fault(
        "random_not_restored",
        "the random state is that of a new run: dropout masks repeat",
        "a checkpoint without random states",
        "resume",
        random_state,
        dropout=0.1,
    ),
    _fault(
        "schedule_not_restored",
        "the scheduler of the learning rate counts from 0 again: warm-up is repeated",
        "a scheduler that is made after the checkpoint was loaded",
        "schedule",
        schedule,
    ),
    _fault(
        "resume_off",
        "no checkpoint is found, and the run starts again: all its numbers are right",
        "a path that has changed",
        "engaged",
        nothing,
    ),
)
