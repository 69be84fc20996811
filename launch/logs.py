"""What the log of a rank tells about its end."""

from __future__ import annotations

import os
import re
from pathlib import Path

FRAME = re.compile(r'^\s*File "(?P<path>.*)", line (?P<line>\d+) in (?P<function>.+)$')
STACK = re.compile(r"^(?P<current>Current thread|Thread) 0x")
SPIED = re.compile(r'^Thread \d+ \(.*\): "MainThread"')
SPIED_FRAME = re.compile(r"^ +(?P<function>\S.*) \((?P<path>.+\.py|<.+>):(?P<line>\d+)\)$")
LIBRARIES = ("site-packages", "dist-packages", os.path.dirname(os.__file__), "<frozen", os.path.dirname(__file__))


def log_of(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank:05d}.log"


def end_of(log: Path, size: int) -> str:
    """The last `size` bytes of a log; '' if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def tail(log: Path, *, lines: int = 20) -> str:
    """The last lines, at most 4 KiB."""
    return "\n".join(end_of(log, 4096).splitlines()[-lines:])


def where(log: Path) -> str:
    """Where the rank was when faulthandler last wrote its stacks: 'wait (threading.py:320), from step (loop.py:33)'.

    The innermost frame, and the first one outside of the standard library and installed packages. Where there is no
    stack, as py-spy saw it, else ''.
    """
    lines = end_of(log, 1 << 16).splitlines()
    starts = [(index, found["current"]) for index, line in enumerate(lines) if (found := STACK.match(line))]
    if not starts:
        return _told(_spied(lines))
    # The thread that took the signal is nearly always the main one, and is the one that was asked to do the work.
    start = next((index for index, kind in reversed(starts) if kind == "Current thread"), starts[-1][0])
    frames = []
    for line in lines[start + 1 :]:
        if (frame := FRAME.match(line)) is None:
            break
        frames.append(frame)
    return _told(frames)


def _spied(lines: list[str]) -> list[re.Match[str]]:
    """The Python frames of the main thread, where py-spy has written its stacks."""
    start = max((index for index, line in enumerate(lines) if SPIED.match(line)), default=len(lines))
    frames = []
    for line in lines[start + 1 :]:
        if not line.startswith(" "):
            break
        if frame := SPIED_FRAME.match(line):
            frames.append(frame)
    return frames


def _told(frames: list[re.Match[str]]) -> str:
    outside = next((frame for frame in frames if not any(name in frame["path"] for name in LIBRARIES)), None)
    told = (
        [f"{f['function']} ({os.path.basename(f['path'])}:{f['line']})" for f in (frames[0], outside) if f]
        if frames
        else []
    )
    return ", from ".join(dict.fromkeys(told))
