"""Is padding, and what is to be ignored, left out of the loss?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.judging.checks.alone.splits import split, unsplit
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView


def check(view: RungView) -> Iterator[Finding]:
    """No target where the input is padding, none that is the id of padding, none in a prompt."""
    writer = view.writer("data_padding")
    if (finding := unsplit(view, writer)) is not None:
        yield finding
        return
    if view.own_loop:
        yield writer.skipped("nobody says what is padding or a prompt in the batches of a script: a recipe would")
        return
    train = split(view, "train")
    at, labels, prompts = (int(train.get(key) or 0) for key in ("pad_targets", "pad_labels", "prompt_targets"))
    total = sum(train["counts"])
    wrong = {"blames": Blamed.RECIPE, "allowed": 0}
    if at or labels:
        yield writer.failed(
            f"of {total} targets {at} are at padding, and {labels} are the id of padding",
            **wrong,
            observed=at + labels,
            symptom="padding_counts",
        )
    elif prompts:
        yield writer.failed(
            f"{prompts} of {total} targets are in prompts", **wrong, observed=prompts, symptom="prompt_counts"
        )
    else:
        yield writer.passed(f"none of {total} targets is at padding or in a prompt", observed=0, allowed=0)
