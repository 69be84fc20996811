"""Can the script of the user's own be started at all, and is it seen? Told at once, not rung by rung."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args, get_type_hints

from dist_checks.command import Command
from dist_checks.judging.own import ATTACH, STEP, add
from dist_checks.judging.reading import plain_dtype, read
from dist_checks.judging.tolerance import DTYPE
from dist_checks.matrix import ConfigError, Matrix
from launch.base import Exit, State

LINES = 3
"""Of what a script said last."""


def check_script(matrix: Matrix) -> None:
    """Before anything is started. Raises ConfigError where the script is not there."""
    for word in matrix.command.words if matrix.command else ():
        if word.endswith(".py") and not Path(word).is_file():
            raise ConfigError(f"command.argv: there is no file {word!r} in {Path.cwd()}")


def check_start(command: Command, exit: Exit, folder: Path) -> None:
    """After the first rung. Raises ConfigError where the script did not come as far as its probe, or has none, or
    computes in other numbers than the matrix says: it would be judged by the rounding of these."""
    if any(folder.glob("rank-*.jsonl")):
        check_precision(command, folder)
        return
    if exit.state is State.FAILED:
        said = [line.strip() for line in exit.error.strip().splitlines() if line.strip()]
        log = folder / "rank-00000.log"
        raise ConfigError(f"command.argv: the script cannot be started: {' | '.join(said[-LINES:])} (see {log})")
    if exit.state is State.DONE and command.see == "probe":
        raise ConfigError(
            f"command.argv: the script came to its end, and no probe was attached: {add(ATTACH, STEP)}; or have it "
            'seen without any line, by command.see = "hooks"'
        )
    if exit.state is State.DONE and command.see == "hooks":
        raise ConfigError(
            "command.argv: the script came to its end, and no step of a torch optimizer was seen: is this the script "
            f"that trains? {add(ATTACH, STEP)}"
        )


def check_precision(command: Command, folder: Path) -> None:
    """Of the single. Raises ConfigError where all of its matrix products were of another precision."""
    ranks = read(folder, 1).ranks
    seen = {plain_dtype(dtype) for rank in ranks for dtype in rank.evidence.get("matmul_dtypes") or ()}
    if seen and DTYPE[command.precision] not in seen:
        names = [name for name in get_args(get_type_hints(Command)["precision"]) if DTYPE[name] in seen]
        say = f"say precision = {json.dumps(names[0])}" if len(names) == 1 else "expected is what it computes in"
        raise ConfigError(
            f"command.precision: {command.precision!r}, but the script multiplies in {' and '.join(sorted(seen))} with "
            f"the precision axis off: {say}"
        )
