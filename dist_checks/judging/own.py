"""Words for what a script of the user's own does not show, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dist_checks.judging.verdict import Finding

if TYPE_CHECKING:
    from dist_checks.judging.view import RungView

ATTACH = "probe = dist_checks.Probe.attach(model, optimizer), after both are made"
STEP = "probe.step(loss_sum=..., targets=...) or probe.step(loss=...), after each optimizer step"
WATCH = "for batch in probe.watch(loader), around the loop's loader"
GRADIENTS = "probe.gradients(), after the last backward of a step and before clipping"

IN_A_LOG = frozenset({"launch", "devices", "loss", "updates", "curve", "twins", "completes"})
"""What checks can say of a script that is seen from the outside only."""


OF_WHAT_RANKS_HOLD = frozenset(
    {"engaged", "initial_weights", "shards", "schedule", "replicas", "gradients", "grad_norm", "updates"}
)
"""What checks cannot say where the weights, gradients and states of a rank could not be read."""

UNREAD = "what ranks hold could not be read"
"""So begins what these say then: the rung is no proof that all is well."""


def add(*lines: str) -> str:
    """What to add to the script."""
    return f"to see it, add {'; and '.join(lines)}"


def shown(name: str, check: Callable[[RungView], Iterable[Finding]]) -> Callable[[RungView], Iterable[Finding]]:
    """The check, or where a script's log and what it saves, or what could be read of it, do not show what it is about,
    that."""

    def of_script(view: RungView) -> Iterable[Finding]:
        unread = next((why for rank in view.trace.ranks if (why := rank.evidence.get("unread"))), None)
        if unread and name in OF_WHAT_RANKS_HOLD:
            return (view.writer(name).skipped(f"{UNREAD}: {unread}"),)
        if not view.log_only or name in IN_A_LOG:
            return check(view)
        lines = (ATTACH, WATCH, STEP) if name == "samples" else (ATTACH, STEP)
        how = f"{add(*lines)}; or, with no line changed, command.see = 'hooks'"
        return (view.writer(name).skipped(f"not to be seen in what the script prints and saves: {how}"),)

    return of_script
