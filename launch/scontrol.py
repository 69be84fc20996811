"""What Slurm says about jobs and nodes, in words that do not change between its versions."""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Sequence

LONGEST = 20.0  # seconds that a command of Slurm may take: a busy controller answers late


class SlurmError(RuntimeError):
    """Slurm refuses, or does not answer; the message is what it says."""


def ask(*argv: str, given: str | None = None, env: dict[str, str] | None = None) -> str:
    """Standard output of a command of Slurm. Raises SlurmError."""
    try:
        ended = subprocess.run(argv, input=given, capture_output=True, text=True, timeout=LONGEST, check=False, env=env)
    except FileNotFoundError:
        raise SlurmError(f"{argv[0]} is not installed here") from None
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{argv[0]} has not answered for {LONGEST:g} s") from None
    if ended.returncode != 0:
        raise SlurmError(_reason(argv[0], ended.stderr) or f"{argv[0]} ended with exit code {ended.returncode}")
    return ended.stdout


def _reason(command: str, said: str) -> str:
    """'sbatch: error: Batch job submission failed: Invalid qos' without what every line of it begins with."""
    lines = [re.sub(rf"^{command}: (error: |fatal: )?", "", line).strip() for line in said.splitlines()]
    return "; ".join(dict.fromkeys(filter(None, lines)))


def fields(record: str) -> dict[str, str]:
    """Of one line of `scontrol -o show ...`: values may hold spaces, keys do not."""
    return {
        key: value.strip() for key, value in re.findall(r"([A-Za-z][\w:/]*)=(.*?)(?=\s+[A-Za-z][\w:/]*=|$)", record)
    }


def expand(nodelist: str) -> list[str]:
    """Names of the nodes of an expression like ``n[1-3,7],login0``: what `scontrol show hostnames` prints."""
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", nodelist):
        names += _expand_one(part)
    return names


def _expand_one(part: str) -> list[str]:
    head, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inner, _, tail = rest.partition("]")
    found: list[str] = []
    for each in inner.split(","):
        low, _, high = each.partition("-")
        numbers: Sequence[int] = range(int(low), int(high or low) + 1)
        found += [f"{head}{number:0{len(low)}d}" for number in numbers]
    return [name + more for name in found for more in _expand_one(tail)] if tail else found


def minutes(limit: str) -> float:
    """Of a time limit as Slurm takes it: ``90``, ``90:00``, ``1:30:00``, ``1-12``, ``1-12:30``; else infinite."""
    days, dash, rest = limit.rpartition("-")
    try:
        parts = [int(part) for part in rest.split(":")]
        units = (60, 1, 1 / 60) if dash or len(parts) == 3 else (1, 1 / 60)
        return int(days or 0) * 1440 + sum(part * unit for part, unit in zip(parts, units, strict=False))
    except ValueError:
        return math.inf
