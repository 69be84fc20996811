"""What the rung that learns has written down of the data: training or validation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dist_checks.judging.heard import UNHEARD
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import RungView, Writer
from dist_checks.rung import Role


def split(view: RungView, name: str) -> Mapping[str, Any]:
    """Empty where there is none of that name."""
    return next((each for each in view.observed("split") if each["split"] == name), {})


def samples(split: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What each sample is known by: the hashes of its inputs and of its targets. Of two texts that differ in their last
    token only the targets do."""
    return list(zip(split["inputs"], split["targets"], strict=True))


def unsplit(view: RungView, writer: Writer, *names: str) -> Finding | None:
    """Why nothing can be said of the splits; None where all of them are there."""
    if view.rung.role is not Role.LEARN:
        return writer.skipped("the rung that learns looks at the data")
    if not split(view, "train") and view.own_loop:
        return writer.skipped(f"{UNHEARD}; or its targets are not one for each token or sample")
    if not split(view, "train"):
        return writer.unseen(f"the data were not looked at: {view.trace.cut}")
    if any(not split(view, name) for name in names):
        return writer.skipped(f"{'the script shows' if view.own_loop else 'the recipe has'} no validation samples")
    return None
