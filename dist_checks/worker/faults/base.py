"""What a fault is: a bug that somebody reported, planted to see whether the checks find it and blame it rightly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dist_checks.axes import Axis
from dist_checks.rung import Rung


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault patches torch, the worker or the data; never the probe, the trace or a check."""

    id: str
    title: str
    source: str
    """The public report, or what the fault is a model of."""
    axes: tuple[tuple[Axis, ...], ...]
    """Each minimal set of axes that breaks, when all of them are on the ladder: what the verdict must name."""
    check: str
    """The check that must see it first; of a race, the one that tells it from other failures."""
    plant: Callable[[Rung], None]
    """On every rank, before anything is built. Patches every rung: where the axes are off, the bug does nothing."""
    leads_to: Mapping[str, str] = field(default_factory=dict)
    """Rows of ``judging/triage.toml`` that its findings name, that of ``check`` among them, each with the suspect that
    must come first."""
    blamed: str = "axis"
    """What the verdict must blame: axis, host, launcher, race or recipe."""
    planted_in: Mapping[str, Any] | None = None
    """The matrix of the self-test, small, with a neighbour that stays right where there is one; None: the first set
    of ``axes``, at the values that the built-in ladder tries."""
    step: int | None = None
    """The step of the first finding, where it is one for all rungs."""
    hosts: int = 1
    """Hosts over which the self-test spreads the ranks, by name only."""
    needs: tuple[str, ...] = ()
    """Packages without which the fault cannot be planted."""

    def to_json(self) -> dict[str, Any]:
        """What the self-test needs to know: everything but the patch itself."""
        return {
            "id": self.id,
            "title": self.title,
            "source": self.source,
            "axes": [[axis.value for axis in each] for each in self.axes],
            "check": self.check,
            "leads_to": dict(self.leads_to),
            "blamed": self.blamed,
            "planted_in": self.planted_in,
            "step": self.step,
            "hosts": self.hosts,
            "needs": list(self.needs),
        }
