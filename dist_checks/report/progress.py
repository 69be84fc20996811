"""What a run is doing right now: a live table on a terminal, one line per rung anywhere else."""

from __future__ import annotations

import sys
import time
from threading import Lock
from types import TracebackType
from typing import Protocol, Self, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dist_checks.report.colour import COLOURS, can_redraw, in_colour
from dist_checks.report.visible import shorten, visible
from dist_checks.report.words import count, duration, listed


class Progress(Protocol):
    """Is told what happens, from any thread."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    def started(self, rung: str, world_size: int) -> None: ...

    def ended(self, rung: str, state: str, seconds: float) -> None:
        """``state`` is a status, or how the job ended where the rung is not judged yet."""

    def note(self, text: str) -> None:
        """A line that stays."""


def progress(total_rungs: int, stream: TextIO | None = None) -> Progress:
    """What suits ``stream``, which is stderr if not given."""
    stream = sys.stderr if stream is None else stream
    return LiveProgress(total_rungs, stream) if can_redraw(stream) else PlainProgress(total_rungs, stream)


class _Ladder:
    """How many rungs wait, which ones run since when, and how many have ended."""

    def __init__(self, total: int) -> None:
        self.lock = Lock()
        self.planned = total
        self.running: dict[str, tuple[int, float]] = {}
        self.ended = 0
        self.began = time.monotonic()

    @property
    def total(self) -> int:
        """Blame may add rungs that nobody planned."""
        return max(self.planned, self.ended + len(self.running))

    def start(self, rung: str, world_size: int) -> None:
        with self.lock:
            self.running[rung] = world_size, time.monotonic()

    def end(self, rung: str, state: str, seconds: float) -> str:
        """The line that stays: ``[ 3/24] tp2+sp   4 ranks   done   1.9 s``."""
        with self.lock:
            world_size, _ = self.running.pop(rung, (0, 0.0))
            self.ended += 1
            at = f"{self.ended:>{len(str(self.total))}}/{self.total}"
        ranks = count(world_size, "rank") if world_size else ""
        name, state = visible(rung), visible(state, limit=20)
        return f"[{at}] {shorten(name, 60):36} {ranks:>8}  {state:12}  {duration(seconds)}".rstrip()


class PlainProgress:
    """For logs: nothing is ever drawn twice."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._ladder = _Ladder(total)
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if running := list(self._ladder.running):
            self.note(f"not ended: {listed([visible(rung) for rung in running])}")

    def started(self, rung: str, world_size: int) -> None:
        self._ladder.start(rung, world_size)

    def ended(self, rung: str, state: str, seconds: float) -> None:
        self._write(self._ladder.end(rung, state, seconds))

    def note(self, text: str) -> None:
        self._write(visible(text, limit=4000, lines=True))

    def _write(self, line: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        self._stream.write(f"{line}\n".encode(encoding, "backslashreplace").decode(encoding))
        self._stream.flush()


class LiveProgress:
    """For terminals: what has ended scrolls up as in a log, what runs or waits is redrawn below it."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self._ladder = _Ladder(total)
        self._colours = COLOURS if in_colour(stream) else {}
        console = Console(file=stream, force_terminal=True, no_color=not self._colours, highlight=False, emoji=False)
        self._live = Live(
            console=console,
            get_renderable=self._table,
            refresh_per_second=5,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=stream is sys.stderr,
        )

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, traceback)
        if running := list(self._ladder.running):
            self.note(f"not ended: {listed([visible(rung) for rung in running])}")

    def started(self, rung: str, world_size: int) -> None:
        self._ladder.start(rung, world_size)
        self._live.refresh()

    def ended(self, rung: str, state: str, seconds: float) -> None:
        line = Text(self._ladder.end(rung, state, seconds))
        line.highlight_words([f" {visible(state, limit=20)} "], self._colours.get(state, ""))
        self._live.console.print(line, soft_wrap=True)
        self._live.refresh()

    def note(self, text: str) -> None:
        self._live.console.print(Text(visible(text, limit=4000, lines=True)))

    def _table(self) -> Group:
        ladder, now = self._ladder, time.monotonic()
        with ladder.lock:
            running = list(ladder.running.items())
            waiting = ladder.total - ladder.ended - len(running)
            head = f"{ladder.ended} of {count(ladder.total, 'rung')} ended, {len(running)} running, {waiting} waiting"
        table = Table.grid(padding=(0, 2))
        for rung, (world_size, since) in running:
            name = Text(shorten(visible(rung), 36), no_wrap=True)
            table.add_row(name, count(world_size, "rank"), "running", duration(now - since))
        return Group(Text(f"{head}, {duration(now - ladder.began)}", no_wrap=True), table)
