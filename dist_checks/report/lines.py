"""A finding in three lines: what and where; what was seen against what is allowed; the axis and what to run next."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import groupby

from dist_checks.report import words
from dist_checks.report.view import Broken, Finding, Report, Sensitivity


def three(finding: Finding, report: Report) -> list[str]:
    """Without the indent. An explanation that repairs is a line of its own; a message keeps its line breaks."""
    body = seen(finding, report)
    lines = [headline(finding), *body.splitlines()]
    if finding.explanation:
        repaired = f" ({words.residual(finding.residual)})" if finding.residual else ""
        why = "undoing this repairs it" if finding.explanation in body else finding.explanation
        lines += [f"why   {line}" for line in f"{why}{repaired}".splitlines()]
    lines += [f"weights  {weights}" for weights in _weights(finding, report)]
    lines += [f"suspect  {suspect}" for suspect in finding.suspects[:2]]
    lines += [f"next  {finding.change}"] if finding.change else []
    last = [part for part in (_axis(finding, report), finding.command and f"try  {finding.command}") if part]
    return [*lines, "    ".join(last)] if last else lines


def _weights(finding: Finding, report: Report) -> list[str]:
    """With which weights samples entered the gradient, where that is wrong in the same rung and not what is told."""
    also = [other for other in report.findings if (other.rung, other.check) == (finding.rung, "contributions")]
    return [other.message for other in also if other.status == "fail" and finding.check != "contributions"][:1]


def headline(finding: Finding) -> str:
    """``FAIL replicas  dp_replicate2  step 3  blocks.1.mlp.down.weight``."""
    status = finding.status.upper() if finding.status == "fail" else finding.status
    where = (finding.rung, f"step {finding.step}" if finding.step else "", finding.tensor)
    return "  ".join(filter(None, (f"{status} {finding.check}", *where)))


def seen(finding: Finding, report: Report) -> str:
    """The message, with ranks, observed and allowed where it does not name them itself."""
    # The judge's message may end with the explanation, which has a line of its own here.
    message, why = finding.message, finding.explanation
    if why and message != why and message.lower().endswith(why.lower()):
        message = message[: -len(why)].rstrip(" .;")
    if finding.ranks and "rank" not in message.lower():
        message = f"{words.ranks(finding.ranks)}: {message}" if message else words.ranks(finding.ranks)
    if finding.observed is not None and "allowed" not in message.lower():
        limit = "" if finding.allowed is None else f", {words.number(finding.allowed)} allowed"
        message = f"{message} (observed {words.number(finding.observed)}{limit})".lstrip()
    if finding.hosts and (len(report.hosts) > 1 or report.blamed == "host"):
        message = f"{message}; on {words.listed(finding.hosts)}"
    return message


def first_of_each(findings: Iterable[Finding]) -> Iterator[tuple[Finding, int]]:
    """The first finding of each rung and check, and how many more there are of the same."""
    ordered = sorted(findings, key=lambda finding: (finding.rung, finding.check))  # stable: the judge's order stays
    for _, group in groupby(ordered, key=lambda finding: (finding.rung, finding.check)):
        first, *more = group
        yield first, len(more)


def telling(report: Report) -> list[tuple[Finding, int]]:
    """What fails or is undecided, one finding of each rung and check: those first that the verdict rests on."""
    rests_on = {broken.finding.key for broken in report.broken if broken.finding}
    at = {rung.id: index for index, rung in enumerate(report.rungs)}

    def order(finding: Finding) -> tuple[bool, bool, int]:
        return finding.key not in rests_on, finding.status != "fail", at[finding.rung]

    met = [finding for finding in report.findings if finding.status in ("fail", "inconclusive")]
    return sorted(first_of_each(sorted(met, key=order)), key=lambda item: order(item[0]))


def first_and_rest(report: Report) -> tuple[list[tuple[Finding, int]], str]:
    """What the verdict rests on, and one line that names what else does not pass: consequences, as a rule."""
    met = telling(report)
    rests_on = {broken.finding.key for broken in report.broken if broken.finding}
    if not rests_on:
        return met, ""
    first = [item for item in met if item[0].key in rests_on]
    rest: dict[str, list[str]] = {}
    for finding, _ in met[len(first) :]:
        rest.setdefault(finding.rung, []).append(finding.check)
    parts = [f"{rung} ({words.listed(checks, most=6)})" for rung, checks in rest.items()]
    return first, f"also not passing: {words.listed(parts, most=6)}" if parts else ""


def would_have_seen(report: Report) -> str:
    """For each precision the smallest scale error that would have failed in all its rungs; empty where none is known.

    Rungs that fail do not count, nor do singles: the narrow ones have wider limits, for want of a run to compare with.
    """
    seen: dict[str, list[Sensitivity]] = {}
    for rung in report.rungs:
        if rung.status == "pass" and rung.role != "single" and rung.sensitivity:
            seen.setdefault(rung.precision or "unknown precision", []).append(rung.sensitivity)
    return "; ".join(
        f"in {precision} any scale error above {words.share(_largest(one.half for one in those))} of half of the "
        f"gradients, above {words.share(_largest(one.coarsest for one in those))} of any"
        for precision, those in seen.items()
    )


def _largest(errors: Iterable[float | None]) -> float | None:
    known = [error for error in errors if error is not None and not math.isnan(error)]
    return max(known, default=None)


def _axis(finding: Finding, report: Report) -> str:
    if report.blamed and report.blamed != "axis":
        return f"to blame  {report.blamed.replace('_', ' ')}"
    broken = report.broken_by(finding.rung)
    if broken is None:
        return ""
    passing = report.passing_neighbours(finding.rung)
    beside = f" ({', '.join(passing[:4])} {'pass' if len(passing) > 1 else 'passes'})" if passing else ""
    return f"axis  {axes(broken)}{beside}"


def axes(broken: Broken) -> str:
    """``tp``; ``pp x accum, only together``."""
    named = " x ".join(broken.axes) or "none"
    if not broken.decided:
        return f"{named}, not decided"
    return f"{named}, {words.together(broken.axes)}" if len(broken.axes) > 1 else named
