"""Numbers, ranks and settings in words, the same on every page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

STATUSES = ("pass", "skip", "accepted", "inconclusive", "fail")
"""From best to worst. A word that is none of these counts as inconclusive."""
SYMBOLS = {"pass": "✓", "skip": "–", "accepted": "≈", "inconclusive": "?", "fail": "✗"}
LETTERS = {"pass": ".", "skip": "s", "accepted": "a", "inconclusive": "?", "fail": "F"}
"""pytest's, where it has one."""

BLAMED = {
    "axis": "An axis is to blame.",
    "host": "A host is to blame, not an axis: the findings follow it over different rungs.",
    "launcher": "The launcher is to blame: it did not start one world with each rank once.",
    "race": "A race: the same rung, run twice, did not give the same bits.",
    "recipe": "The recipe is to blame: it already fails on one device, so nothing above that can be trusted.",
    "not_comparable": "Not comparable: the initial weights are not those of the reference.",
}


def number(value: float | None, digits: int = 3) -> str:
    """``1e-10``, ``0.5``, ``nan``; a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}g}"


def share(value: float | None) -> str:
    """A fraction, in percent where that is readable: ``0.4 %``, ``3e-10``."""
    if value is None or not math.isfinite(value) or abs(value) < 1e-5:
        return number(value, 2)
    return f"{100 * value:.2g} %"


def duration(seconds: float | None) -> str:
    """``1.9 s``, ``3 min 20 s``; empty where it is not known."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    if seconds < 99.5:
        return f"{seconds:.1f} s"
    return f"{round(seconds) // 60} min {round(seconds) % 60} s"


def count(number_of: int, noun: str, plural: str = "") -> str:
    """``1 rung``, ``2 rungs``."""
    return f"{number_of} {noun if number_of == 1 else plural or noun + 's'}"


def listed(parts: Sequence[str], most: int = 8) -> str:
    """``a, b and c``; beyond ``most``, how many others there are."""
    if len(parts) > most:
        return f"{', '.join(parts[:most])} and {count(len(parts) - most, 'other')}"
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def ranks(numbers: Iterable[int]) -> str:
    """``rank 3``, ``ranks 0 and 1``, ``ranks 0 to 7 and 12``; empty for none."""
    ordered = sorted(set(numbers))
    if len(ordered) < 2:
        return f"rank {ordered[0]}" if ordered else ""
    runs: list[list[int]] = [[ordered[0]]]
    for before, rank in pairwise(ordered):
        if rank == before + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts: list[str] = []
    for run in runs:
        parts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run)
    return f"ranks {listed(parts)}"


def residual(pair: tuple[float | None, float | None]) -> str:
    """How far from the reference without and with the repair that an explanation asks for."""
    return f"residual {number(pair[0])} -> {number(pair[1])} when undone"


def setting(axes: Mapping[str, object]) -> str:
    """A rung's name from its axes: ``tp2+sp+bf16``; ``single`` for none."""
    parts = []
    for axis, value in axes.items():
        match value:
            case True:
                parts.append(axis)
            case int():
                parts.append(f"{axis}{value}")
            case _:
                parts.append(str(value))
    return "+".join(parts) or "single"


def together(axes: Sequence[str], decided: bool = True) -> str:
    """Whether one axis suffices to fail."""
    if not decided:
        return "not decided: a neighbour that would tell was lost or not run"
    return "only together" if len(axes) > 1 else "alone"
