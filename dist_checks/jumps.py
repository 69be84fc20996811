"""When a step of a run that learns jumps: the rule by which a rank saves such a step and the judge names it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

WINDOW = 20
"""Steps before it that tell what is usual."""
LOSS, NORM = 8.0, 30.0
"""In units of how far the losses of the window are apart (half of them), and times the middle norm of the window."""
LEAST = 0.5
"""Part of the loss by which it jumps at least."""
SETTLED, SMALL = 0.05, 0.1
"""Parts of the first loss and of the first norm, below which a jump is none: what has come close to zero moves by large
parts of itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What the steps of a window have in common."""

    level: float
    """The middle loss per target; NaN where one of them is no number, and then no loss jumps."""
    spread: float
    """How far the middle half of the losses is apart."""
    norm: float
    """The middle gradient norm; NaN where none is known."""
    first: tuple[float, float] = (0.0, 0.0)
    """Loss and norm of the first step."""

    @classmethod
    def of(
        cls,
        losses: Sequence[float],
        norms: Sequence[float | None],
        first: Sequence[float | None] | None = None,
    ) -> Usual:
        """Of the last WINDOW steps, or all where there are fewer: at least two. ``first``: loss and norm of the first
        step of all."""
        window = [float(loss) for loss in losses[-WINDOW:]]
        known = [float(norm) for norm in norms[-WINDOW:] if norm is not None and math.isfinite(norm)]
        level = spread = math.nan
        if all(map(math.isfinite, window)):
            level = median(window)
            low, _, high = quantiles(window, n=4, method="inclusive")
            spread = high - low
        return cls(level=level, spread=spread, norm=median(known) if known else math.nan, first=_known(first))

    @property
    def highest(self) -> float:
        """The loss above which a step jumps."""
        return self.level + max(LOSS * self.spread, LEAST * self.level, SETTLED * self.first[0])

    def times(self, norm: float | None) -> float:
        """The middle norm; 0 where there is nothing to compare."""
        return norm / self.norm if norm is not None and self.norm > 0 else 0.0

    def jumps(self, loss: float, norm: float | None) -> bool:
        """A loss that is no number does not jump: that is another matter."""
        far = norm is not None and norm > SMALL * self.first[1] and self.times(norm) > NORM
        return loss > self.highest or far


def _known(first: Sequence[float | None] | None) -> tuple[float, float]:
    loss, norm = (value if value is not None and math.isfinite(value) else 0.0 for value in first or (None, None))
    return loss, norm
