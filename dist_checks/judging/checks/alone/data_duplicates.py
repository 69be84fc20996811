"""Is every sample there once, with something to learn from it?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from dist_checks.judging.checks.alone.splits import samples, split, unsplit
from dist_checks.judging.verdict import Blamed, Finding
from dist_checks.judging.view import RungView

MOST = 0.01
"""Share of the samples that may be there twice, or be next to empty."""
EMPTY = 1
"""Targets, or fewer, of samples of which others have many."""


def check(view: RungView) -> Iterator[Finding]:
    """By the hashes of inputs and targets together."""
    writer = view.writer("data_duplicates")
    if (finding := unsplit(view, writer)) is not None:
        yield finding
        return
    train = split(view, "train")
    if train.get("by_content"):
        yield writer.skipped(
            "samples are known by what they are: copies would be one (probe.watch knows the sampler's ids)"
        )
        return
    ids = train["ids"]
    hashes = samples(train)
    counts = Counter(hashes)
    again = len(ids) - len(counts)
    wide = sorted(train["counts"])[len(ids) // 2] > 4 * EMPTY if ids else False
    empty = [id for id, count in zip(ids, train["counts"], strict=True) if count <= EMPTY] if wide else []
    if again > max(1, MOST * len(ids)):
        often, times = counts.most_common(1)[0]
        same = [id for id, each in zip(ids, hashes, strict=True) if each == often]
        yield writer.failed(
            f"{again} of {len(ids)} samples are copies of others; samples {', '.join(map(str, same[:4]))} are the same"
            f" ({times} times)",
            observed=again / len(ids),
            allowed=MOST,
            blames=Blamed.RECIPE,
            symptom="duplicates",
        )
    elif len(empty) > max(1, MOST * len(ids)):
        yield writer.failed(
            f"{len(empty)} of {len(ids)} samples have at most {EMPTY} target: {', '.join(map(str, empty[:5]))}",
            observed=len(empty) / len(ids),
            allowed=MOST,
            blames=Blamed.RECIPE,
            symptom="empty_samples",
        )
    else:
        lengths = sorted(train["lengths"])
        yield writer.passed(
            f"{len(ids)} samples, {again} copies; {lengths[0]} to {lengths[-1]} tokens, "
            f"{lengths[len(lengths) // 2]} in the middle",
            observed=again / max(1, len(ids)),
            allowed=MOST,
        )
