"""A user's recipe whose rank 1 comes to an end of its own in step 1, in one way or another."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dist_checks.recipes.base import Batch
from dist_checks.recipes.gpt import GPT, GPTRecipe


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def segfault() -> None:
    ctypes.string_at(0)


def abort() -> None:
    os.abort()


def throw() -> None:
    raise KeyError("no such batch")


def leave() -> None:
    sys.exit(0)


def leave_at_once() -> None:
    os._exit(0)


def allocate() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**32, most))
    torch.ones(2**36)


class Ending(GPTRecipe):
    way: Any = None

    def loss(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, int]:
        if torch.is_grad_enabled() and os.environ.get("RANK") == "1":
            type(self).calls = getattr(type(self), "calls", 0) + 1
            if type(self).calls == 2:
                type(self).way()
        return super().loss(outputs, batch)


class Killed(Ending):
    way = staticmethod(kill)


class Crashed(Ending):
    way = staticmethod(segfault)


class Aborted(Ending):
    way = staticmethod(abort)


class Threw(Ending):
    way = staticmethod(throw)


class Left(Ending):
    way = staticmethod(leave)


class LeftAtOnce(Ending):
    way = staticmethod(leave_at_once)


class Greedy(Ending):
    """Wants more than its cgroup may have: the kernel kills it."""

    way = staticmethod(lambda: torch.ones(2**30))


class OutOfMemory(Ending):
    way = staticmethod(allocate)


class DiesAfterAll(GPTRecipe):
    """Its process aborts while it ends, when all has been done, as with DeepSpeed now and then."""

    def model(self) -> GPT:
        if os.environ.get("RANK") == "1":
            os._exit = lambda code: os.abort()  # type: ignore[assignment]
        return super().model()


class Elsewhere(GPTRecipe):
    """On rank 1 digests go to the file ``place``; the log of a rank stands beside its trace."""

    def __init__(self, *, place: str, **options: Any) -> None:
        super().__init__(**options)
        self.place = place

    def model(self) -> GPT:
        if os.environ.get("RANK") == "1":
            os.symlink(self.place, Path(os.readlink("/proc/self/fd/1")).with_suffix(".digests"))
        return super().model()


class FillsItsDisk(GPTRecipe):
    """In step 1 rank 1 leaves no room on the disk of the run, once."""

    def loss(self, outputs: Tensor, batch: Batch) -> tuple[Tensor, int]:
        disk = Path(os.readlink("/proc/self/fd/1")).parents[3]  # /disk/run/rungs/tp2/rank-00001.log
        filler = disk / "filler"
        if os.environ.get("RANK") == "1" and not filler.exists():
            type(self).calls = getattr(type(self), "calls", 0) + torch.is_grad_enabled()
            if type(self).calls == 2:
                with suppress(OSError), filler.open("wb", buffering=0) as file:
                    while file.write(bytes(4096)):
                        pass
        return super().loss(outputs, batch)
