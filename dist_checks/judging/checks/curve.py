"""Over a long run, is the loss curve that of the reference, as far as seeds differ from each other?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dist_checks.judging.late import FEWEST, Pair
from dist_checks.judging.tolerance import DTYPE, EPS
from dist_checks.judging.verdict import Finding, Status
from dist_checks.judging.view import RungView

MARGIN = 5e-3
"""Relative difference of late losses that is taken for none, where seeds do not say more. Correct layouts in bf16
measured 0.3 % over 50 steps (ISEEKYAN/Megatron-LM PR#154)."""

SEEDS = 2.0
"""Two layouts may differ as two seeds do: by so many standard deviations."""

ENOUGH = 3
"""Seeds from which how far runs part by rounding alone can be told: each says it once."""

T_PASS = {2: 2.92, 3: 2.35, 4: 2.13, 5: 2.02, 6: 1.94, 7: 1.89, 8: 1.86, 9: 1.83}
T_FAIL = {2: 22.3, 3: 10.2, 4: 7.17, 5: 5.89, 6: 5.21, 7: 4.79, 8: 4.50, 9: 4.30}
"""Student's t by degrees of freedom, one-sided, at 0.95 and at 0.999: a sign-off has dozens of rungs."""


def check(view: RungView) -> Iterator[Finding]:
    """Two one-sided tests on the last half: equivalent, different, or too noisy to say. With three seeds the noise is
    that between the differences of seeds. With fewer it is that within the curve, which says nothing of how far two
    right runs part in narrow numbers: there a difference is never more than INCONCLUSIVE."""
    writer = view.writer("curve")
    if view.rung.steps < FEWEST:
        yield writer.skipped(f"{view.rung.steps} steps are no curve: at least {FEWEST}")
        return
    if refused := writer.incomparable():
        yield refused
        return
    pairs = [pair for pair in view.pairs if len(pair.steps) >= FEWEST // 4]
    own = next((pair for pair in pairs if pair.seed == view.rung.seed), None)
    if own is None:
        few = next((len(pair.steps) for pair in view.pairs if pair.seed == view.rung.seed), 0)
        yield writer.unseen(f"only {few} late steps were recorded on both sides: {view.trace.cut}")
        return
    found = weigh(pairs, own, narrow=EPS[DTYPE[view.rung.precision]] > EPS["float32"])
    fields = {"step": own.steps[0], "observed": found.observed, "allowed": found.allowed}
    if found.status is Status.FAIL:
        yield writer.failed(found.numbers, **fields)
    elif found.status is Status.PASS:
        yield writer.passed(found.numbers, **fields)
    else:
        yield writer.unseen(f"{found.numbers}: {found.why}", **fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """What late curves come to."""

    status: Status
    observed: float
    """Relative to the reference's late loss, as ``allowed``."""
    allowed: float
    numbers: str
    why: str = ""
    """It is not decided."""


def weigh(pairs: Sequence[Pair], own: Pair, *, narrow: bool) -> Weighed:
    """Is the mean difference within the margin, for sure?"""
    together = len(pairs) >= ENOUGH
    if not together:
        pairs = [own]
    level = abs(float(np.mean([pair.level for pair in pairs])))
    mean = float(np.mean([pair.mean for pair in pairs]))
    margin = max(MARGIN * level, SEEDS * _spread([pair.level for pair in pairs]))
    error, doubt = _of_seeds(pairs) if together else (_within(own), _within(own))
    of = f"of {len(pairs)} seeds " if together else ""
    numbers = f"late losses {of}differ by {mean:+.2e} +- {error:.1e} of {level:.4g}, {margin:.1e} allowed"
    status, why = Status.INCONCLUSIVE, "too noisy to say; more steps or more seeds would tell"
    if abs(mean) + error <= margin:
        status = Status.PASS
    elif narrow and not together and math.isfinite(mean):
        why = f"one seed cannot tell a fault from rounding that has grown in narrow numbers; {ENOUGH} seeds would"
    elif not abs(mean) - doubt <= margin:  # nor where it is not finite
        status = Status.FAIL
    return Weighed(status=status, observed=abs(mean) / level, allowed=margin / level, numbers=numbers, why=why)


def _spread(values: Sequence[float]) -> float:
    """Standard deviation; 0 for fewer than three."""
    return float(np.std(values, ddof=1)) if len(values) >= ENOUGH else 0.0


def _of_seeds(pairs: Sequence[Pair]) -> tuple[float, float]:
    """How far the mean difference may be off, to pass and to fail."""
    error = _spread([pair.mean for pair in pairs]) / math.sqrt(len(pairs))
    free = min(len(pairs) - 1, max(T_PASS))
    return T_PASS[free] * error, T_FAIL[free] * error


def _within(pair: Pair) -> float:
    """The same from one curve: neighbouring steps are not independent, means of quarters are nearly so."""
    quarters = np.array([part.mean() for part in np.array_split(pair.differences, 4)])
    return T_PASS[3] * float(quarters.std(ddof=1)) / math.sqrt(len(quarters))
