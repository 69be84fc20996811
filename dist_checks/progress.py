"""What is told to somebody who waits for a run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Progress(Protocol):
    """What is told while rungs run. The report package has one for people."""

    def started(self, rung: str, world_size: int) -> None: ...
    def ended(self, rung: str, state: str, seconds: float) -> None: ...
    def note(self, text: str) -> None: ...


class Silent:
    """Tells nobody."""

    def started(self, rung: str, world_size: int) -> None:
        pass

    def ended(self, rung: str, state: str, seconds: float) -> None:
        pass

    def note(self, text: str) -> None:
        pass


ShowProgress = Callable[[int], AbstractContextManager[Progress]]
"""Given the number of rungs."""


def silent(total: int) -> AbstractContextManager[Progress]:
    return nullcontext(Silent())
