"""Did the rung start from the weights of the run that it is compared with?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dist_checks.judging.comparison import distances
from dist_checks.judging.logical import Full
from dist_checks.judging.seen import Seen
from dist_checks.judging.tolerance import EPS, eps_of
from dist_checks.trace import BEFORE, Kind

ROUNDINGS = 4.0
"""Initial weights that were rounded on the way (made in float32, used in bf16) may differ by so many eps."""

SUMMING = 64 * EPS["float64"]
"""Relative: how far the norms of the same numbers in another order may be apart."""

ALONG = 1e-9
"""Relative: what is further from the line through the right numbers is no multiple of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Of initial weights and buffers together."""

    compared: int
    different: int
    """By more than rounding."""
    first: str
    """Name of the first that differs; of the worst where none does."""
    observed: float
    """Its relative distance."""
    allowed: float
    changed: str
    """What was done to those that differ, where it can be told of each: the right numbers, in other places or times a
    factor. No other seed draws that."""
    other_bits: tuple[str, ...]
    """Names of those of the same type that are equal up to rounding, and not in their bits, where both were made on the
    same hosts. Nothing was rounded on the way, so something has changed them. (Processors of another kind may round the
    logarithms and cosines behind a random number in another way.)"""


def start(own: Seen, yardstick: Seen) -> Start:
    """Initial weights and buffers against those of the run that it is compared with."""
    compared = different = 0
    first, observed, allowed = "", 0.0, 0.0
    changes: list[str] = []
    same_host = set(own.trace.hosts.values()) <= set(yardstick.trace.hosts.values())
    other_bits: list[str] = []
    for kind in (Kind.WEIGHT, Kind.BUFFER):
        mine, yard = own.full(kind), yardstick.full(kind)
        for row in mine.at(BEFORE).tolist():
            other = yard.rows.get(mine.key(row))
            if other is None or not mine.complete[row] or not yard.complete[other]:
                continue
            compared += 1
            name = mine.names[mine.tensor[row]]
            limit = ROUNDINGS * max(_eps(mine, row), _eps(yard, other))
            distance = _relative(mine, row, yard, other)
            if not distance <= limit:
                if not different:
                    first, observed, allowed = name, distance, limit
                different += 1
                changes.append(_change(mine, row, yard, other))
                continue
            same_type = _same_type(mine, row, yard, other)
            if same_host and same_type and mine.fingerprint[row] != yard.fingerprint[other]:
                other_bits.append(name)
            if not different and distance >= observed:
                first, observed, allowed = name, distance, limit
    return Start(
        compared=compared,
        different=different,
        first=first,
        observed=observed,
        allowed=allowed,
        changed=changes[0] if changes and all(changes) else "",
        other_bits=tuple(other_bits),
    )


def _change(mine: Full, row: int, yard: Full, other: int) -> str:
    """What was done to the right numbers of one tensor; empty where it is none that could be told."""
    a, b = mine.sketch[row], yard.sketch[other]
    square = float(b @ b)
    if not square or not np.isfinite(a).all():
        return ""
    factor = float(a @ b) / square
    if np.linalg.norm(a - factor * b) <= ALONG * np.linalg.norm(b):
        return f"is {factor:.6g} x that of"
    same_norm = abs(float(mine.norm[row]) - float(yard.norm[other])) <= SUMMING * float(yard.norm[other])
    return "has other places for the numbers of" if same_norm else ""


def _eps(given: Full, row: int) -> float:
    return eps_of(given.dtypes[given.tensor[row]])


def _same_type(mine: Full, row: int, yard: Full, other: int) -> bool:
    one, two = mine.dtypes[mine.tensor[row]], yard.dtypes[yard.tensor[other]]
    return bool(one == two)


def _relative(mine: Full, row: int, yard: Full, other: int) -> float:
    if _same_type(mine, row, yard, other) and mine.fingerprint[row] == yard.fingerprint[other]:
        return 0.0
    distance = float(distances(mine, np.array([row]), yard, np.array([other]))[0])
    norm = float(yard.norm[other])
    return distance / norm if norm else (np.inf if distance else 0.0)


def replicas_agree(own: Seen) -> bool:
    """Initial weights and buffers have the same bits on all ranks that hold the same part."""
    for kind in (Kind.WEIGHT, Kind.BUFFER):
        found = own.records(kind)
        same = ~found.new_part[1:] & (found.step[1:] == BEFORE)
        if (same & (found.fingerprint[1:] != found.fingerprint[:-1])).any():
            return False
    return True


def other_start(own: Seen, yardstick: Seen) -> str:
    """Why comparing says nothing; empty where the rung started as it should, or where it is broken: where replicas
    disagree, or the right numbers are in other places. What follows from such a fault is to be shown."""
    if not replicas_agree(own):
        return ""
    found = start(own, yardstick)
    if not found.different or found.changed:
        return ""
    return f"initial {found.first} differs by {found.observed:.1e} from that of {yardstick.rung.id}"
