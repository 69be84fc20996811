"""From a comparison of tensors to findings: the first that fails, how it fails, and how many more do."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dist_checks.judging.comparison import Comparison
from dist_checks.judging.logical import Ints
from dist_checks.judging.signatures import explain
from dist_checks.judging.tolerance import Rule
from dist_checks.judging.verdict import Finding
from dist_checks.judging.view import Writer
from dist_checks.trace import NO_ITEM, Kind

MOST = 3
"""Findings of one check about one rung, where tensors fail in clearly different ways."""


def findings(
    writer: Writer, kind: Kind, found: Comparison, *, explained: bool = True, noun: str = ""
) -> Iterator[Finding]:
    """At least one finding about tensors of ``kind``, which messages call by ``noun``."""
    noun = noun or kind.value.replace("_", " ")
    bad = found.first_failing()
    if found.missing:
        first = min(found.missing, key=lambda key: key.step)
        if not bad.size or first.step <= found.step[bad[0]]:
            yield _missing(writer, noun, found)
    for group in list(_ways_to_fail(found, bad))[:MOST]:
        yield _failed(writer, kind, noun, found, group, bad, explained)
    if bad.size or found.missing:
        return
    if found.incomplete and writer.view.trace.cut:
        key = found.incomplete[0]
        yield writer.unseen(
            f"{noun} {key.name} of step {key.step} is not complete ({len(found.incomplete)} in all): "
            f"{writer.view.trace.cut}"
        )
    if found.excused.any():
        yield _not_judged(writer, noun, found)
    if not found.excused.all():
        yield _passed(writer, noun, found)
    elif not len(found) and not found.incomplete:
        yield writer.unseen(f"no {noun} was recorded both here and in {_yard(writer)}: {_why_not(writer, kind)}")


def _passed(writer: Writer, noun: str, found: Comparison) -> Finding:
    worst = found.worst()
    key = found.keys[worst]
    count = len({key.name for key in found.keys})
    ratio = found.truth_ratio
    far = f"; at most {ratio:.2f} x as far from it as {writer.view.rung.reference}" if ratio is not None else ""
    return writer.passed(
        f"{count} {noun}s at {_steps(found)} are those of {_yard(writer)}; nearest to failing: {key.name} at step "
        f"{key.step}, {found.observed[worst]:.1e} off, {found.allowed_relative[worst]:.1e} allowed{far}",
        step=key.step,
        tensor=key.name,
        observed=found.observed[worst],
        allowed=found.allowed_relative[worst],
        truth_ratio=ratio,
    )


def _not_judged(writer: Writer, noun: str, found: Comparison) -> Finding:
    rows = np.flatnonzero(found.excused)
    worst = int(rows[np.argmax(found.strain[rows])])
    count = sum(flip.tokens for flip in writer.view.flipped)
    return writer.skipped(
        f"{len(rows)} of {len(found)} {noun}s are further off than rounding goes, and not judged: {count} tokens were "
        f"routed to other experts than in {writer.view.rung.reference or writer.view.rung.truth}; the furthest is "
        f"{found.keys[worst].name} at step {found.keys[worst].step}, {found.observed[worst]:.1e} off, "
        f"{found.allowed_relative[worst]:.1e} allowed",
        step=found.keys[worst].step,
        tensor=found.keys[worst].name,
        observed=found.observed[worst],
        allowed=found.allowed_relative[worst],
    )


def _steps(found: Comparison) -> str:
    first, last = int(found.step.min()), int(found.step.max())
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _yard(writer: Writer) -> str:
    view = writer.view
    if view.tolerance.rule is Rule.REFERENCE:
        return str(view.rung.reference)
    return f"the float64 single ({view.rung.truth})"


def _why_not(writer: Writer, kind: Kind) -> str:
    """What the ranks said about tensors that they could not read."""
    for seen in (writer.view.own, writer.view.yard):
        for rank in seen.trace.ranks if seen is not None else ():
            for item in rank.evidence.get("unrecorded") or ():
                if item.get("kind") == kind.value:
                    return f"{item.get('name')} of {seen.rung.id if seen else ''}: {item.get('reason')}"
    return writer.view.trace.cut or "the run was too short, or the recipe names no blocks"


def _missing(writer: Writer, noun: str, found: Comparison) -> Finding:
    first = min(found.missing, key=lambda key: key.step)
    unrecorded = {
        item.get("name") for rank in writer.view.trace.ranks for item in rank.evidence.get("unrecorded") or ()
    }
    message = (
        f"no rank recorded {noun} {first.name} of step {first.step}, which {_yard(writer)} has"
        f" ({len({key.name for key in found.missing})} such tensors)"
    )
    if writer.view.trace.cut or first.name in unrecorded:
        return writer.unseen(f"{message}: {writer.view.trace.cut or 'it could not be read'}", tensor=first.name)
    return writer.failed(message, step=first.step, tensor=first.name, observed=1.0, allowed=0.0)


def _ways_to_fail(found: Comparison, bad: Ints) -> Iterator[Ints]:
    """Failing rows of one step, by what they are off by: one factor, another, a direction, NaN."""
    groups: dict[str, list[int]] = {}
    for row in bad.tolist():
        distance, scale, cosine = found.distance[row], found.scale[row], found.cosine[row]
        if math.isnan(distance):
            way = "not finite"
        elif abs(scale - 1) > 0.01 and cosine > 0.999:
            way = f"{scale:.1f}" if scale > 1 else f"1/{1 / scale:.1f}"
        else:
            way = "direction"
        groups.setdefault(way, []).append(row)
    yield from (np.array(rows, np.int64) for rows in groups.values())


def _failed(
    writer: Writer, kind: Kind, noun: str, found: Comparison, group: Ints, bad: Ints, explained: bool
) -> Finding:
    view = writer.view
    first, worst = int(group[0]), int(group[np.argmax(found.strain[group])])
    key = found.keys[first]
    step = int(found.step[first])
    at_step = int((found.step == step).sum())
    if math.isnan(found.distance[first]):
        what = f"{_broken(writer, kind, found, first)} elements are not finite"
    else:
        what = (
            f"{found.observed[first]:.1e} from {_yard(writer)}, {found.allowed_relative[first]:.1e} allowed; "
            f"scale {found.scale[first]:.4g}, cosine {found.cosine[first]:.4g}"
        )
    sample = f" of sample {key.item}" if key.item != NO_ITEM else ""
    message = f"{noun} {key.name}{sample}: {what}"
    if len(group) > 1:
        message += f"; so {len(group)} of {at_step} at this step"
        if worst != first:
            message += f", worst {found.keys[worst].name} ({found.observed[worst]:.1e})"
    if len(bad) > len(group):
        message += f"; {len(bad) - len(group)} others fail in another way"
    if (equal := [s for s in sorted(set(found.step.tolist())) if 0 <= s < step]) and key.item == NO_ITEM:
        message += f"; right at steps {equal[0]} to {equal[-1]}" if len(equal) > 1 else f"; right at step {equal[0]}"
    explanation = explain(view, kind, found, group) if explained else None
    if explanation is not None:
        message += f". {explanation.sentence[0].upper()}{explanation.sentence[1:]}"
    given = view.own.records(kind)
    row = int(found.rows[first])
    ranks = np.unique(given.rank[given.starts[row] : _stop(given.starts, row, len(given))])
    return writer.failed(
        message,
        step=step,
        tensor=key.name,
        ranks=ranks.tolist(),
        observed=found.observed[first],
        allowed=found.allowed_relative[first],
        scale=found.scale[first],
        cosine=found.cosine[first],
        explanation=explanation,
    )


def _stop(starts: Ints, row: int, end: int) -> int:
    return int(starts[row + 1]) if row + 1 < len(starts) else end


def _broken(writer: Writer, kind: Kind, found: Comparison, row: int) -> str:
    mine = writer.view.own.full(kind)
    here = int(found.rows[row])
    return f"{mine.nonfinite[here]} of {mine.elements[here]}"
