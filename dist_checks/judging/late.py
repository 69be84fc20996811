"""The late part of a loss curve beside that which it is compared with, one pair a seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dist_checks.judging.losses import losses
from dist_checks.judging.seen import Seen

FEWEST = 100
"""Steps below which there is no late part of a curve: single steps are judged by other checks."""


def late(seen: Seen) -> dict[int, float]:
    """The loss per target of the steps of the second half; nothing for a short run."""
    steps = seen.rung.steps
    if steps < FEWEST:
        return {}
    return {step: loss.mean for step, loss in losses(seen).items() if step >= steps // 2}


@dataclass(frozen=True)
class Pair:
    """Of one seed."""

    seed: int
    mine: Mapping[int, float]
    theirs: Mapping[int, float]
    """Of the single that it is compared with, of the same seed."""

    @cached_property
    def steps(self) -> list[int]:
        """Those that both have."""
        return sorted(set(self.mine) & set(self.theirs))

    @cached_property
    def differences(self) -> Any:
        """Mine - theirs, one a step."""
        return np.array([self.mine[step] - self.theirs[step] for step in self.steps])

    @property
    def mean(self) -> float:
        return float(self.differences.mean())

    @property
    def level(self) -> float:
        """The mean of what it is compared with."""
        return float(np.mean([self.theirs[step] for step in self.steps]))
