"""A script as it is, seen from the outside: what it prints, what it writes to a log, what it saves.

``python -m dist_checks.probe.outside python train.py ...`` is what a rank runs: the script in a process of its own,
whose output is passed on and read. Rank 0 then reads the rest, and writes the trace of all.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dist_checks.probe.probe import FOLDER
from dist_checks.trace import Kind, Writer

RUNG = "DIST_CHECKS_RUNG"
NUMBER = r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf(?:inity)?)"
JSONL, TENSORBOARD = "jsonl:", "tensorboard:"


class Said(NamedTuple):
    """The loss of a step, as the script tells it."""

    step: int | None
    """As it counts; None where it does not say."""
    loss: float
    resolution: float
    """Half a unit of the last digit that is told."""


def said(number: str, step: object = None) -> Said:
    """Raises ValueError where it is no number."""
    digits, _, exponent = number.lower().partition("e")
    places = len(digits.partition(".")[2])
    resolution = 0.5 * 10.0 ** (int(exponent or 0) - places) if digits[-1:].isdigit() else 0.0
    return Said(None if step is None else int(str(step)), float(number), resolution)


def in_text(pattern: str, lines: Sequence[str]) -> Iterator[Said]:
    """The group ``loss`` of a regular expression, or its only one; and ``step``, if it has one."""
    compiled = re.compile(pattern)
    for line in lines:
        if (found := compiled.search(line)) is None:
            continue
        groups = found.groupdict()
        number = groups.get("loss") or found[1]
        try:
            yield said(number, groups.get("step"))
        except ValueError:
            continue


def in_json_lines(key: str, lines: Sequence[str]) -> Iterator[Said]:
    """Of JSON objects, one a line; ``key`` may be ``train.loss``. Lines that are none are passed over."""
    for line in lines:
        try:
            row = json.loads(line, parse_float=str)
        except ValueError:
            continue
        value = row
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, str | int):
            step = next((row[name] for name in ("step", "global_step", "iteration", "iter") if name in row), None)
            try:
                yield said(str(value), step)
            except ValueError:
                continue


def told(pattern: str, output: Sequence[str], log: str) -> list[Said]:
    """Every loss that the script tells, in order; ``pattern`` is what [command] calls ``loss``."""
    if pattern.startswith(TENSORBOARD):
        from dist_checks.probe.events import scalars

        tag = pattern.removeprefix(TENSORBOARD)
        return [Said(step, value, abs(value) * 2.0**-24) for step, value in scalars(Path(log), tag)]
    lines = list(output)
    if log:
        try:
            lines = Path(log).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
    if pattern.startswith(JSONL):
        return list(in_json_lines(pattern.removeprefix(JSONL), lines))
    return list(in_text(pattern, lines)) if pattern else []


def numbered(found: Sequence[Said]) -> dict[int, Said]:
    """By step, counted from 0: as the script counts, from the first one that it tells, or in order."""
    if not found or any(each.step is None for each in found):
        return dict(enumerate(found))
    first = min(each.step for each in found if each.step is not None)
    return {each.step - first: each for each in found if each.step is not None}


def run(words: Sequence[str]) -> tuple[int, list[str]]:
    """(exit code, what was printed): the script, its output passed on line by line."""
    env = {key: value for key, value in os.environ.items() if key not in (FOLDER, RUNG)} | {"PYTHONUNBUFFERED": "1"}
    lines = []
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env, text=True, errors="replace"
    ) as process:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGABRT):
            signal.signal(number, lambda number, _: process.send_signal(number))
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
    return process.returncode, lines


def write(folder: Path, rank: int, about: Mapping[str, Any], output: Sequence[str]) -> None:
    """The trace of a rank: of rank 0 with all that is to be seen."""
    rung = about.get("rung") or {}
    header = {
        "rung": rung.get("id", folder.name),
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "host": os.environ.get("LAUNCH_HOST") or os.uname().nodename,
        "pid": os.getpid(),
        "seen": "log",
        "parameters": [],
        "optimizer": [],
    }
    writer = Writer(folder, rank, header)
    if rank == 0:
        losses = numbered(told(about.get("loss") or "", output, about.get("log") or ""))
        last = max(losses, default=int(rung.get("steps", 1)) - 1)
        reasons = _weights(writer, last, about.get("checkpoint") or "")
        for step, loss in sorted(losses.items()):
            writer.event(
                "step",
                step=step,
                ids=[],
                micro_batches=[],
                loss_sum=loss.loss,
                targets=1,
                printed_loss=loss.loss,
                resolution=loss.resolution,
                loss_from="log",
                skipped=False,
            )
        writer.event("evidence", unrecorded=reasons)
    writer.close()


def _weights(writer: Writer, step: int, checkpoint: str) -> list[dict[str, str]]:
    """Records what was saved; returns why not, in the words of the evidence event."""
    if not checkpoint:
        return []
    import torch

    from dist_checks.probe.saved import NotRead, weights
    from dist_checks.probe.scribe import Scribe

    reasons: list[dict[str, str]] = []

    def unrecorded(kind: Kind, name: str, reason: str) -> None:
        reasons.append({"kind": kind.value, "name": name, "reason": reason})

    try:
        found = weights(Path(checkpoint))
    except NotRead as why:
        unrecorded(Kind.WEIGHT, checkpoint, str(why))
        return reasons
    scribe = Scribe(writer, torch.device("cpu"), unrecorded)
    scribe.tensors(step, ((Kind.WEIGHT, name, x) for name, x in found.items()))
    return reasons


def main(words: Sequence[str]) -> int:
    code, output = run(words)
    if code == 0 and os.environ.get(FOLDER):
        about = json.loads(os.environ.get(RUNG, "{}"))
        write(Path(os.environ[FOLDER]), int(os.environ.get("RANK", "0")), about, output)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
