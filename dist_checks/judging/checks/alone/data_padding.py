"""Is padding, and what is to be ignored, left out of the loss?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.judging.checks.alone.splits import split, unsplit
from dist_checks.judging.heard import heard
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView, Writer


def check(view: RungView) -> Iterator[Finding]:
    """No target where the input is padding, none that is the id of padding, none in a prompt."""
    writer = view.writer("data_padding")
    if (finding := unsplit(view, writer)) is not None:
        yield finding
        return
    if view.own_loop and view.recipe["command"].get("pad") is None:
        yield _of_script(view, writer)
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


def _of_script(view: RungView, writer: Writer) -> Finding:
    """By its attention mask, in the first batch. One target a sample may be the end of a text, or its first token."""
    told = heard(view)
    if "padded" not in told:
        return writer.skipped("nothing says what is padding: there is no attention mask, and no command.pad")
    padded, samples, total = (int(told[key]) for key in ("padded", "samples", "targets"))
    if padded > samples:
        return writer.failed(
            f"of {total} targets of the first step {padded} are tokens that the attention mask leaves out",
            observed=padded,
            allowed=samples,
            blames=Blamed.RECIPE,
            symptom="padding_counts",
        )
    return writer.passed(f"{padded} of {total} targets of the first step are left out by the attention mask")
