"""Two traces, of any layouts, from any place and time: where do they first differ, and which settings do?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dist_checks.judging.comparison import Comparison
from dist_checks.judging.comparison import compare as side_by_side
from dist_checks.judging.logical import Full, full, records
from dist_checks.judging.reading import Trace, read
from dist_checks.judging.settings_seen import changed, degrees, settings
from dist_checks.judging.tolerance import EPS, Rule, Tolerance, eps_of
from dist_checks.trace import BEFORE, Kind

# In the order in which a step has them. Not those of block outputs: how much a rank's loss counts is a matter of the
# loop (under DDP a rank's own mean is averaged later), and gradients tell whether that was right.
ORDER = (Kind.WEIGHT, Kind.BUFFER, Kind.OUTPUT, Kind.GRADIENT, Kind.APPLIED)
AFTER = (Kind.WEIGHT, Kind.BUFFER)
"""Recorded when the step has been taken; those of no step, before the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first one that is more than rounding."""

    step: int
    """-1 for what was there before the first step."""
    kind: str
    tensor: str
    distance: float
    """Relative."""
    allowed: float
    scale: float
    """Of the second run over the first: least squares."""
    cosine: float
    count: int
    """So many tensors of this kind differ at this step."""

    @property
    def words(self) -> str:
        when = "before the first step" if self.step == BEFORE else f"at step {self.step}"
        more = f"; so {self.count} of its kind" if self.count > 1 else ""
        return (
            f"{self.kind.replace('_', ' ')} {self.tensor} {when}: {self.distance:.1e} apart, {self.allowed:.1e} is "
            f"rounding; scale {self.scale:.4g}, cosine {self.cosine:.4g}{more}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Diff:
    """What :func:`compare` found. ``settings`` are (of the first, of the second), by name, where they differ."""

    first: Difference | None
    compared: int
    """Tensors, each of its steps."""
    equal_bits: bool
    largest: float
    """Relative distance of those that are equal up to rounding."""
    settings: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        return self.first is None and self.compared > 0

    @property
    def warning(self) -> str:
        """Where several settings differ: none of them can be blamed."""
        if len(self.settings) < 2 or self.first is None:
            return ""
        return f"{len(self.settings)} settings differ, so nothing can be blamed on one of them: change one at a time"

    @property
    def sentence(self) -> str:
        if not self.compared:
            return "nothing was recorded by both"
        names = ", ".join(f"{name} ({_value(a)} -> {_value(b)})" for name, (a, b) in self.settings.items())
        if self.first is None:
            how = "bit for bit" if self.equal_bits else f"up to rounding, {self.largest:.1e} apart at most"
            return f"equal {how}: {self.compared} tensors" + (f"; settings that differ: {names}" if names else "")
        said = f"first differ in {self.first.words}"
        if not self.settings:
            return f"{said}. No setting that was recorded differs: the code, the data, a host or a race"
        what = "The one setting that differs" if len(self.settings) == 1 else "Settings that differ"
        return f"{said}. {what}: {names}"

    def to_json(self) -> dict[str, Any]:
        first = self.first
        return {
            "same": self.same,
            "sentence": self.sentence,
            "warning": self.warning,
            "compared": self.compared,
            "equal_bits": self.equal_bits,
            "largest": self.largest,
            "first": None if first is None else {name: getattr(first, name) for name in first.__slots__},
            "settings": {name: [a, b] for name, (a, b) in self.settings.items()},
        }


def compare(a: Path | str, b: Path | str) -> Diff:
    """The traces in two folders that hold files like ``rank-00000.jsonl``. Raises FileNotFoundError, TraceError."""
    one, other = _read(Path(a)), _read(Path(b))
    found, compared, equal, largest = list[tuple[int, int, Difference]](), 0, True, 0.0
    for order, kind in enumerate(ORDER):
        mine, yard = _full(other, kind), _full(one, kind)
        if not len(mine) or not len(yard):
            continue
        tolerance = Tolerance(rule=Rule.REFERENCE, eps=_eps(one, other, mine, yard))
        result = side_by_side(mine, yard, tolerance)
        compared += len(result)
        equal = equal and not result.distance.any() and _bits(mine, yard, result)
        good = result.observed[result.ok]
        largest = max(largest, float(good.max(initial=0.0)))
        found += [(_moment(first.step, order, kind), order, first) for first in _first(kind, result)]
    first = min(found, key=lambda each: each[:2])[2] if found else None
    return Diff(
        first=first,
        compared=compared,
        equal_bits=equal and first is None,
        largest=largest,
        settings=changed(settings(one), settings(other)),
    )


def _read(folder: Path) -> Trace:
    ranks = sorted(folder.glob("rank-*.jsonl"))
    if not ranks:
        raise FileNotFoundError(f"{folder}: this is no trace: it has no rank-00000.jsonl")
    trace = read(folder, len(ranks))
    return read(folder, int(trace.header.get("world_size") or len(ranks)))


def _full(trace: Trace, kind: Kind) -> Full:
    return full(trace, records(trace, kind), degrees(trace))


def _eps(one: Trace, other: Trace, mine: Full, yard: Full) -> float:
    """Of the narrowest numbers that either of them computes with."""
    seen = [
        dtype for trace in (one, other) for rank in trace.ranks for dtype in rank.evidence.get("matmul_dtypes") or ()
    ]
    floats = [dtype for dtype in (*seen, *mine.dtypes, *yard.dtypes) if dtype.removeprefix("torch.") in EPS]
    return max(map(eps_of, floats), default=EPS["float32"])


def _moment(step: int, order: int, kind: Kind) -> int:
    """Comes before what is later: the weights of a step are there when its gradients have been."""
    return 2 * step + (1 if kind in AFTER else 0)


def _first(kind: Kind, found: Comparison) -> Iterator[Difference]:
    bad = found.first_failing()
    if bad.size:
        row = int(bad[0])
        yield Difference(
            step=int(found.step[row]),
            kind=kind.value,
            tensor=found.keys[row].name,
            distance=float(found.observed[row]),
            allowed=float(found.allowed_relative[row]),
            scale=float(found.scale[row]),
            cosine=float(found.cosine[row]),
            count=len(bad),
        )


def _bits(mine: Full, yard: Full, found: Comparison) -> bool:
    return bool(np.array_equal(mine.fingerprint[found.rows], yard.fingerprint[found.yard_rows]))


def _value(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "none" if value is None else str(value)
