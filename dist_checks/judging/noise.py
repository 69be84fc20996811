"""Is a difference between two settings more than the noise between seeds? The same seeds with one and the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
"""Student's t by degrees of freedom, two-sided, at 0.95; 1.96 for more."""

LAST = 0.1
"""Part of the steps whose mean loss counts."""

LOWER, HIGHER, WITHIN, OPEN = "lower", "higher", "within noise", "not decided"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Of losses at the end, paired by seed: the second against the first."""

    seeds: int
    base: float
    changed: float
    """Means over seeds."""
    difference: float
    noise: float
    """What the mean difference has to exceed; infinite with one seed."""

    @property
    def verdict(self) -> str:
        if self.seeds < 2:
            return OPEN
        if abs(self.difference) <= self.noise:
            return WITHIN
        return LOWER if self.difference < 0 else HIGHER

    @property
    def sentence(self) -> str:
        said, apart = f"loss {self.changed:.4g} against {self.base:.4g}", _apart(self.difference)
        if self.seeds < 2:
            return f"{said}, {apart}; one seed does not tell a difference from noise: repeat = 3 would"
        if self.verdict == WITHIN:
            return f"{said}, within noise ({apart}, {self.noise:.2g} between {self.seeds} seeds)"
        return f"{said}, {apart} over {self.seeds} seeds (noise {self.noise:.2g})"

    def to_json(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in ("seeds", "base", "changed", "difference")}
        known = self.noise if math.isfinite(self.noise) else None
        return {**numbers, "noise": known, "verdict": self.verdict, "sentence": self.sentence}


def noise(pairs: Sequence[tuple[float, float]]) -> Noise:
    """``pairs`` of (first, second), one a seed; at least one. A difference counts if it is more than what changes of it
    from seed to seed, and more than what another draw of seeds would change alone."""
    differences = [changed - base for base, changed in pairs]
    many, limit = len(pairs), math.inf
    if many > 1:
        paired = _t(many - 1) * stdev(differences) / math.sqrt(many)
        spread = math.hypot(*(stdev(column) for column in zip(*pairs, strict=True)))
        limit = max(paired, _t(2 * many - 2) * spread / math.sqrt(many))
    return Noise(
        seeds=len(pairs),
        base=fmean(base for base, _ in pairs),
        changed=fmean(changed for _, changed in pairs),
        difference=fmean(differences),
        noise=limit,
    )


def end(losses: Sequence[object]) -> float | None:
    """The mean of the last finite losses; None where there is none."""
    values = [x for x in losses if isinstance(x, float) and math.isfinite(x)]
    return fmean(values[-max(1, int(LAST * len(values))) :]) if values else None


def _t(freedom: int) -> float:
    return T.get(freedom, 1.96)


def _apart(difference: float) -> str:
    return f"{abs(difference):.2g} {HIGHER if difference > 0 else LOWER}"
