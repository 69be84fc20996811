"""From numbers to places on a drawing, for every number there is: nan, infinities and zero on a log scale too."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

LANE = 16.0
"""Height of the lanes outside the scale: one above for what is not finite, one below for zero on a log scale."""
_EXTREME = 1e150
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Vertical: ``top`` and ``bottom`` are where ``high`` and ``low`` are drawn, without the lanes."""

    low: float
    high: float
    top: float
    bottom: float
    log: bool
    lane_above: bool
    lane_below: bool

    @classmethod
    def over(cls, values: Iterable[float | None], *, top: float, bottom: float, log: bool) -> Scale:
        """Wide enough for all values; it makes room for a lane only where a value needs it."""
        known = [value for value in values if value is not None]
        finite = [max(-_EXTREME, min(_EXTREME, value)) for value in known if math.isfinite(value)]
        lane_above = len(finite) < len(known)
        lane_below = log and any(value <= 0 for value in finite)
        if log:
            powers = [math.log10(value) for value in finite if value > 0]
            low, high = float(math.floor(min(powers, default=-1))), float(math.ceil(max(powers, default=0)))
            low, high = (low, high) if low < high else (low - 1, high + 1)
        else:
            low, high = min(finite, default=0.0), max(finite, default=1.0)
            margin = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
            low, high = low - margin, high + margin
        return cls(
            low=low,
            high=high,
            top=top + LANE * lane_above,
            bottom=bottom - LANE * lane_below,
            log=log,
            lane_above=lane_above,
            lane_below=lane_below,
        )

    def inside(self, value: float) -> bool:
        """Whether the value has a place on the scale itself, and not in a lane."""
        return math.isfinite(value) and (value > 0 or not self.log)

    def at(self, value: float) -> float:
        """Always finite, and always on the drawing."""
        if not math.isfinite(value):
            return self.top - LANE * 0.7
        if not self.inside(value):
            return self.bottom + LANE * 0.7
        place = math.log10(value) if self.log else max(-_EXTREME, min(_EXTREME, value))
        part = (place - self.low) / (self.high - self.low)
        return self.bottom + max(0.0, min(1.0, part)) * (self.top - self.bottom)

    def ticks(self, most: int = 4) -> list[tuple[float, str]]:
        """Places with their labels, the lanes among them."""
        if self.log:
            low, high = int(self.low), int(self.high)
            every = math.ceil((high - low) / most)
            ticks = [(self._on(power), _power(power)) for power in range(high, low - 1, -every)]
        else:
            step = _step((self.high - self.low) / most)
            decimals = max(0, -math.floor(math.log10(step)))
            first, last = math.ceil(self.low / step), math.floor(self.high / step)
            spell = "{:.3g}" if not 1e-4 < step < 1e4 else f"{{:.{decimals}f}}"
            ticks = [(self._on(index * step), spell.format(index * step)) for index in range(first, last + 1)]
        if self.lane_above:
            ticks.append((self.at(math.nan), "nan, inf"))
        if self.lane_below:
            ticks.append((self.at(0.0), "0"))
        return ticks

    def _on(self, place: float) -> float:
        return self.bottom + (place - self.low) / (self.high - self.low) * (self.top - self.bottom)


def _step(rough: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 5, 10, 20) if factor * power >= rough)


def _power(exponent: int) -> str:
    return {0: "1", 1: "10"}.get(exponent, f"10{str(exponent).translate(_SUPERSCRIPT)}")
