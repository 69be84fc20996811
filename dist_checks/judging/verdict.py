"""The words of the judge: status, finding, what is broken, verdict, exit code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from dist_checks.axes import Setting


class Status(IntEnum):
    """Ordered: the worst of several is their maximum. In JSON, the name in lower case."""

    PASS = 0
    SKIP = 1
    INCONCLUSIVE = 2
    FAIL = 3

    def __str__(self) -> str:
        return self.name.lower()

    @classmethod
    def parse(cls, name: str) -> Status:
        return cls[name.upper()]


def worst(statuses: Iterable[Status]) -> Status:
    """INCONCLUSIVE where there is none: nothing seen is not a pass."""
    return max(statuses, default=Status.INCONCLUSIVE)


class ExitCode(IntEnum):
    """What ``dist-checks`` ends with."""

    PASS = 0
    FAIL = 1  # a check failed
    USAGE = 2  # the command line or the configuration is wrong
    INCONCLUSIVE = 3  # something could not be observed; 1 with --strict
    BROKEN = 4  # the harness itself broke
    INTERRUPTED = 130

    @classmethod
    def of(cls, status: Status, *, strict: bool = False) -> ExitCode:
        if status is Status.PASS:
            return cls.PASS
        if status is Status.FAIL or strict:
            return cls.FAIL
        return cls.INCONCLUSIVE


class Blamed(StrEnum):
    """What kind of thing is to blame for a failure."""

    AXIS = "axis"
    HOST = "host"
    LAUNCHER = "launcher"
    RACE = "race"
    RECIPE = "recipe"
    NOT_COMPARABLE = "not_comparable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """A sentence that was accepted because undoing what it says repairs the tensors.

    ``before`` and ``after`` are relative distances to the reference, without and with the repair.
    """

    sentence: str
    before: float
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a check has seen in one rung. A passing finding says how far from failing it was."""

    check: str
    rung: str
    status: Status
    message: str
    step: int | None = None
    tensor: str | None = None
    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    observed: float | None = None
    """A distance, in the unit that the message names; NaN where the numbers themselves are."""
    allowed: float | None = None
    scale: float | None = None
    """Least-squares factor to the reference: 2.0 where everything is twice too large."""
    cosine: float | None = None
    truth_ratio: float | None = None
    """In narrow numbers: the largest distance from the float64 run over that of the single of the same numerics."""
    explanation: Explanation | None = None
    blames: Blamed | None = None
    """Set where the finding itself says that no axis is to blame."""
    try_next: str = ""
    """A command."""
    symptom: str = ""
    """In the table of triage."""
    suspects: tuple[str, ...] = ()
    """What it may be due to, the likeliest first."""
    change: str = ""
    """The next single thing to change or to look at."""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "check": self.check,
            "rung": self.rung,
            "status": str(self.status),
            "step": self.step,
            "tensor": self.tensor,
            "ranks": list(self.ranks),
            "hosts": list(self.hosts),
            "observed": self.observed,
            "allowed": self.allowed,
            "scale": self.scale,
            "cosine": self.cosine,
            "truth_ratio": self.truth_ratio,
            "message": self.message,
            "try": self.try_next,
        }
        if self.symptom:
            out |= {"symptom": self.symptom, "suspects": list(self.suspects), "next": self.change}
        if self.explanation:
            out["explanation"] = self.explanation.sentence
            out["residual"] = [self.explanation.before, self.explanation.after]
        return out


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """One minimal set of axes that fails where each neighbour with one of them switched off passes."""

    setting: Setting
    """The guilty axes with their values."""
    rungs: tuple[str, ...]
    first: Finding
    """The first failing finding of the smallest failing rung."""
    decided: bool = True
    """False where a neighbour that would decide was lost or not run."""

    @property
    def axes(self) -> list[str]:
        return sorted(axis.value for axis in self.setting)

    def to_json(self) -> dict[str, Any]:
        explanation = self.first.explanation
        return {
            "axes": self.axes,
            "values": self.setting.to_json(),
            "rungs": list(self.rungs),
            "check": self.first.check,
            "step": self.first.step,
            "tensor": self.first.tensor,
            "ranks": list(self.first.ranks),
            "explanation": explanation.sentence if explanation else self.first.message,
            "residual": [explanation.before, explanation.after] if explanation else None,
            "decided": self.decided,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a whole run says."""

    status: Status
    sentence: str
    """One line, for people: ``PASS 24 rungs equal to one device``."""
    blamed: Blamed | None
    broken: tuple[Broken, ...]
