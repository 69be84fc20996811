"""What a run is doing right now: a live table on a terminal, one line per rung anywhere else."""

from __future__ import annotations

import sys
import time
from threading import Lock
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dist_checks.report.terminal import COLOURS, in_colour
from dist_checks.report.visible import shorten, visible
from dist_checks.report.words import count, duration

# How a job ended, and what the judge says of a rung.
_COLOURS = COLOURS | {"done": "green", "failed": "bold red", "timed_out": "bold red", "lost": "yellow"}


class Progress(Protocol):
    """Told by the session what happens; may be called from any thread."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def started(self, rung: str, world_size: int) -> None: ...

    def ended(self, rung: str, state: str, seconds: float) -> None: ...

    def note(self, text: str) -> None:
        """A line that stays."""


def progress(total_rungs: int, stream: TextIO | None = None) -> Progress:
    """The kind of progress that suits ``stream``, which is stderr if not given."""
    stream = sys.stderr if stream is None else stream
    return LiveProgress(total_rungs, stream) if stream.isatty() else PlainProgress(total_rungs, stream)
