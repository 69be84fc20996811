"""What a matrix says of rung zero, ``[single]``, and of what is to be expected, ``[expect]``. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Gt
from pydantic import ConfigDict

from dist_checks.command import Command

_STRICT = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Single:
    """Rung zero: what one device is asked before any scaling. Where a key is not given, it is as the comment says in a
    matrix without axes, and 0 in one with axes."""

    __pydantic_config__ = _STRICT
    learn: Annotated[int, Ge(0)] | None = None
    """Steps of a longer run, before which data and model are examined (120); 0: no such rung."""
    overfit: Annotated[int, Ge(0)] | None = None
    """Samples of the one batch that has to be memorised (8); 0: no such rung. Of a script 1: its own first batch."""
    overfit_steps: Annotated[int, Ge(1)] = 200
    """In which it has to be memorised."""
    overfit_bound: Annotated[float, Gt(0)] = 0.1
    """Loss per target, above what no model could do better, under which a batch is memorised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expect:
    """What is written down before the launch, and judged after: from a comparable run."""

    __pydantic_config__ = _STRICT
    first_loss: Annotated[float, Gt(0)] | None = None
    """Of the first step, per target."""
    loss: dict[int, float] = field(default_factory=dict)
    """At steps of the rung that learns (counted from 0): the mean over the ten steps that end there."""
    within: Annotated[float, Gt(0)] = 0.05
    """Relative."""


LEARN_STEPS, OVERFIT_SAMPLES = 120, 8


def of_script(command: Command, single: Single, expect: Expect) -> Iterator[str]:
    """What is wrong with it for a script, a line for each key."""
    if single.overfit not in (None, 0, 1):
        yield f"single.overfit: a script memorises its own first batch: expected 1, or 0 for none, not {single.overfit}"
    asked = [f"single.{name}" for name in ("learn", "overfit") if getattr(single, name)]
    asked += ["expect"] * (expect != Expect())
    if asked and not command.can_be_alone:
        yield (
            f"{asked[0]}: expected a script that is told by {{steps}} how long to train, and is seen by its probe or "
            f"by hooks: command.argv is {command.argv!r}, command.see {command.see!r}"
        )
