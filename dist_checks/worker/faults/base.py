"""What a fault is: a bug that somebody reported, planted to see whether the checks find it and blame it rightly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    """The check that must see it first."""
    plant: Callable[[Rung], None]
    """On every rank, before anything is built. Patches every rung: where the axes are off, the bug does nothing."""
