"""Does every text begin and end with its token, once?"""

from __future__ import annotations

from collections.abc import Iterator

from dist_checks.judging.checks.alone.splits import split, unsplit
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView

MOST = 0.02
"""Share of the samples that may be otherwise: texts that were cut off have no end."""


def check(view: RungView) -> Iterator[Finding]:
    """Where the recipe says what these tokens are."""
    writer = view.writer("data_special_tokens")
    if (finding := unsplit(view, writer)) is not None:
        yield finding
        return
    train = split(view, "train")
    said = []
    for key, word in (("begins", "begins"), ("ends", "ends")):
        counts = {int(times): int(count) for times, count in (train.get(key) or {}).items()}
        total = sum(counts.values())
        if not total:
            continue
        wrong = total - counts.get(1, 0)
        if wrong > MOST * total:
            twice = sum(count for times, count in counts.items() if times > 1)
            yield writer.failed(
                f"of {total} samples {counts.get(0, 0)} have no token that {word} a text, {twice} more than one",
                observed=wrong / total,
                allowed=MOST,
                blames=Blamed.RECIPE,
                symptom="special_tokens",
                suspects=("twice",) if twice > counts.get(0, 0) else ("missing",),
            )
            return
        said.append(f"{total - wrong} of {total} have one token that {word} them")
    if said:
        yield writer.passed("; ".join(said))
    else:
        whose, where = ("script", "command.begin, command.end") if view.own_loop else ("recipe", "begin, end")
        yield writer.skipped(f"the {whose} does not say which tokens begin and end a text ({where})")
