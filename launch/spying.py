"""Stacks of ranks that do not answer, by py-spy where it is installed: it asks the kernel, not the rank."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from launch.process import PARENT, die_with_parent

LONGEST = 5.0  # seconds for all the ranks of a node
MOST = 8  # ranks of a node: one after the other, about a quarter of a second each


def spy() -> str:
    """The command, '' where it is not installed."""
    own = Path(sys.executable).parent
    return shutil.which("py-spy", path=os.pathsep.join((str(own), os.environ.get("PATH", os.defpath)))) or ""


def arguments(ranks: Iterable[tuple[int, Path]]) -> tuple[str, ...]:
    """What this module is started with, to append the stacks of some process ids to their logs."""
    pairs = [(str(pid), str(log)) for pid, log in ranks][:MOST]
    return ("launch.spying", *(word for pair in pairs for word in pair))


def dump(command: str, pid: str, log: Path) -> None:
    """With the frames of native code where py-spy can tell them on this machine; a process that is stopped already
    cannot be stopped for it."""
    said = ""
    for how in ("--native",), (), ("--nonblocking",):
        try:
            done = subprocess.run(
                [command, "dump", "--full-filenames", *how, "--pid", pid],
                capture_output=True,
                timeout=LONGEST,
                check=False,
                env=os.environ | {"RUST_BACKTRACE": "0"},
                text=True,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            said = str(error)
            continue
        if done.returncode == 0:
            said = done.stdout
            break
        said = done.stderr
    with log.open("a") as file:
        file.write(f"\npy-spy, as this rank does not answer:\n{said.rstrip()}\n")


def main() -> None:
    """`python -m launch.spying PID LOG ...`"""
    die_with_parent(int(os.environ[PARENT]))
    command, words = spy(), sys.argv[1:]
    for pid, log in zip(words[::2], words[1::2], strict=True):
        dump(command, pid, Path(log))


if __name__ == "__main__":
    main()
