"""In which order a stage of a pipeline worked: the schedule that it has followed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Action(NamedTuple):
    """What a stage of a pipeline did: F, B (both gradients), I (those of inputs), W (those of weights)."""

    what: str
    stage: int
    number: int
    """Of the micro-batch in its step."""


def order(actions: Sequence[Action]) -> str:
    """The schedule that a rank has followed."""
    if any(action.what in "IW" for action in actions):
        return "zerobubble"
    mixed = "BF" in "".join(action.what for action in actions)
    if len({action.stage for action in actions}) > 1:
        return "interleaved" if mixed else "looped gpipe"
    return "1f1b" if mixed else "gpipe"
