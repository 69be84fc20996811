"""The checks: one property of a rung a file, and this one list of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from dist_checks.judging.checks import (
    additive,
    collectives,
    completes,
    contributions,
    curve,
    devices,
    engaged,
    evaluation,
    forward,
    grad_norm,
    gradients,
    initial_weights,
    launch,
    loss,
    replicas,
    resume,
    rng,
    routing,
    samples,
    schedule,
    shards,
    twins,
    updates,
)
from dist_checks.judging.checks.alone import ALONE as ALONE
from dist_checks.judging.checks.alone import told_by
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView
from dist_checks.rung import Role, Rung

Check = Callable[[RungView], Iterable[Finding]]
"""Pure; yields at least one finding."""

# In the order of cause and effect: of what fails at one step, the first is told first.
CHECKS: tuple[tuple[str, Check], ...] = (
    ("launch", launch.check),
    ("devices", devices.check),
    ("engaged", engaged.check),
    ("resume", resume.check),
    ("samples", samples.check),
    ("rng", rng.check),
    ("initial_weights", initial_weights.check),
    ("shards", shards.check),
    ("collectives", collectives.check),
    ("schedule", schedule.check),
    ("replicas", replicas.check),
    ("routing", routing.check),
    ("forward", forward.check),
    ("loss", loss.check),
    ("additive", additive.check),
    ("contributions", contributions.check),
    ("gradients", gradients.check),
    ("grad_norm", grad_norm.check),
    ("updates", updates.check),
    ("curve", curve.check),
    ("evaluation", evaluation.check),
    ("twins", twins.check),
    ("completes", completes.check),
)

# What has been recorded before the first step, or in it, to be compared with what a single has recorded there.
FIRST_ONLY = frozenset({"initial_weights", "routing", "forward", "additive", "contributions"})
LAST_ONLY = frozenset({"curve", "evaluation"})


def is_asked(name: str, view: RungView) -> bool:
    """Whether the check has something to say about this phase of a rung."""
    first, last = view.start == 0, view.stop == view.rung.steps
    return (first or name not in FIRST_ONLY) and (last or name not in LAST_ONLY)


OF_ZERO = ("launch", "samples", "grad_norm", "completes")
"""Of the checks above, those that also say something about a rung of rung zero, which is compared with nothing."""


def asked(rung: Rung) -> tuple[tuple[str, Check], ...]:
    """What is asked about a rung: rung zero's own checks of one device alone, and all others of what is compared."""
    alone = tuple(each for each in ALONE if told_by(rung.role, each[0]))
    if rung.role is Role.SINGLE:
        return (*alone, *CHECKS)
    if rung.is_zero:
        # Memorising reads the same samples in every step.
        kept = [name for name in OF_ZERO if name != "samples" or rung.role is not Role.OVERFIT]
        return (*alone, *(each for each in CHECKS if each[0] in kept))
    return CHECKS
