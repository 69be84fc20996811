"""Saves all that a run is made of, and loads it in new processes: torch.distributed.checkpoint."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as read
from torch.distributed.checkpoint.state_dict_saver import save as write

from dist_checks.probe.header import parameter_table
from dist_checks.probe.names import plain
from dist_checks.worker import rng
from dist_checks.worker.axes import pp

if TYPE_CHECKING:
    from dist_checks.worker.loop import Trainer

# Key by key, so that a layout with other groups of parameters can load them.
OPTIONS = StateDictOptions(flatten_optimizer_state_dict=True)

RANDOM = "random state "
"""Before the number of what a rank computes: see :func:`rng.place`."""


def save(trainer: Trainer, folder: Path) -> None:
    """On every rank, between two steps."""
    with alone():
        write(State(trainer).by_name, checkpoint_id=folder, no_dist=not dist.is_initialized())


def load(trainer: Trainer, folder: Path) -> None:
    """On every rank, before the first step: model and optimizer are made, whatever their numbers are."""
    saved = FileSystemReader(folder).read_metadata().state_dict_metadata
    state = State(trainer)
    known = any(name.startswith(f"{state.random}.") for name in saved)
    if not known:  # of a rank that there was not when this was saved
        state.by_name.pop(state.random)
    if not any(name.startswith("optimizer.state.") for name in saved):
        state.drop_steps()
    with alone():
        read(state.by_name, checkpoint_id=folder, no_dist=not dist.is_initialized())
    state.give_back(trainer)
    if known:
        draw_on(trainer, state.by_name[state.random])
    else:
        rng.seed_rank(trainer.world, trainer.next_step)


def step_on(trainer: Trainer, state: dict[str, Any]) -> None:
    """The optimizer gets the state that was saved; its tensors have been read in place."""
    with without_empty_groups(trainer.stepped()):
        set_optimizer_state_dict(trainer.model, trainer.stepped(), state, options=OPTIONS)


@contextmanager
def alone() -> Iterator[None]:
    """Inside, one process without a group is nothing to be warned of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


@contextmanager
def without_empty_groups(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Inside, the groups of which this rank steps nothing are gone: torch cannot load them (tests/upstream)."""
    groups = optimizer.param_groups
    optimizer.param_groups = [group for group in groups if group["params"]]
    yield
    loaded = iter(optimizer.param_groups)
    optimizer.param_groups = [next(loaded) if group["params"] else group for group in groups]


def draw_on(trainer: Trainer, states: Mapping[str, Tensor]) -> None:
    """Random numbers go on as they would have."""
    rng.restore(states, trainer.world.device)


class State:
    """What one rank has of a run, under names that are the same in every layout."""

    def __init__(self, trainer: Trainer) -> None:
        model = get_model_state_dict(trainer.model, options=OPTIONS)
        optimizer = get_optimizer_state_dict(trainer.model, trainer.stepped(), options=OPTIONS)
        tied = {
            row["name"]: row["tied"]
            for row in parameter_table(trainer.model, pp.copies(trainer.model))
            if row["tied"] is not None
        }
        # Of tied parameters one is saved, the stages of a pipeline have a prefix, and two may have one buffer.
        self._model = {key: _known_as(plain(key), tied) for key in model}
        self._optimizer = {key: _known_in_optimizer(key, tied) for key in optimizer}
        self.random = f"{RANDOM}{rng.place(trainer.world)} of {trainer.data_size}"
        self.by_name: dict[str, Any] = {
            "model": {self._model[key]: value for key, value in model.items()},
            "optimizer": {self._optimizer[key]: value for key, value in optimizer.items()},
            "scaler": {} if trainer.scaler is None else trainer.scaler.state_dict(),
            "progress": trainer.progress(),
            self.random: rng.state(trainer.world.device),
        }

    def drop_steps(self) -> None:
        """The loss scaler had left out every step before: the optimizer had no state, and torch has made one here."""
        self._optimizer = {key: name for key, name in self._optimizer.items() if not key.startswith("state.")}
        self.by_name["optimizer"] = {name: self.by_name["optimizer"][name] for name in self._optimizer.values()}

    def give_back(self, trainer: Trainer) -> None:
        """What was read into :attr:`by_name`."""
        model = {key: self.by_name["model"][name] for key, name in self._model.items()}
        optimizer = {key: self.by_name["optimizer"][name] for key, name in self._optimizer.items()}
        set_model_state_dict(trainer.model, model, options=OPTIONS)
        if any(key.startswith("state.") for key in optimizer):
            step_on(trainer, optimizer)
        else:
            trainer.stepped().state.clear()
        trainer.load_progress(self.by_name["progress"])
        if trainer.scaler is not None:
            trainer.scaler.load_state_dict(self.by_name["scaler"])


def _known_as(name: str, tied: Mapping[str, str]) -> str:
    return tied.get(name, name)


def _known_in_optimizer(key: str, tied: Mapping[str, str]) -> str:
    """``state.<parameter>.exp_avg``, ``param_groups.<parameter>.lr``."""
    kind, _, rest = key.partition(".")
    name, _, what = rest.rpartition(".")
    return f"{kind}.{_known_as(plain(name), tied)}.{what}"
