"""Which colours a terminal gets, and whether it gets any."""

from __future__ import annotations

import os
from typing import TextIO

COLOURS = {
    "pass": "green",
    "skip": "dim",
    "accepted": "cyan",
    "inconclusive": "yellow",
    "fail": "bold red",
    # how a job ended, before it is judged
    "done": "green",
    "failed": "bold red",
    "timed_out": "bold red",
    "cancelled": "yellow",
    "lost": "yellow",
}


def can_redraw(stream: TextIO) -> bool:
    """A terminal that knows more than to print one line after the other."""
    return stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def in_colour(stream: TextIO) -> bool:
    """On a terminal that can, unless NO_COLOR says otherwise (https://no-color.org)."""
    return can_redraw(stream) and not os.environ.get("NO_COLOR")
