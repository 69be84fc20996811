"""The step summary of GitHub Actions: Markdown, within its budget."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dist_checks.report import lines, words
from dist_checks.report.read import read
from dist_checks.report.view import Broken, Finding, Report, Table

BUDGET = 1024 * 1024
"""GitHub drops a step summary that is larger, whole."""
MOST_ROWS = 500
_MORE = "_More did not fit here: the page of the run has everything._"

_ICONS = {"pass": "✅", "skip": "➖", "accepted": "🟦", "inconclusive": "❔", "fail": "❌"}


def write(report: Mapping[str, Any], path: Path) -> None:
    """Appends to ``path``, as every writer of $GITHUB_STEP_SUMMARY does; what was there counts against the budget."""
    used = path.stat().st_size if path.exists() else 0
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(markdown(read(report), BUDGET - used))


def markdown(report: Report, budget: int = BUDGET) -> str:
    """At most ``budget`` bytes: blocks in the order of what they tell, until one does not fit."""
    kept: list[str] = []
    room = budget - len(_MORE.encode()) - 4
    for block in _blocks(report):
        room -= len(block.encode()) + 2
        if room < 0:
            kept.append(_MORE)
            break
        kept.append(block)
    text = "\n\n".join(kept) + "\n\n"
    return text if len(text.encode()) <= budget else ""


def _blocks(report: Report) -> Iterator[str]:
    yield f"## {_ICONS[report.status]} {_text(report.sentence)}"
    if report.blamed and report.blamed != "axis":
        yield _text(words.BLAMED.get(report.blamed, report.blamed))
    yield from map(_broken, report.broken)
    if report.rungs:
        yield from map(_rungs, report.tables)
    if seen := lines.would_have_seen(report):
        yield f"Would have been seen: {_text(seen)}."
    if report.skipped:
        yield _fold("Combinations left out", _table(("", "reason"), ((s.setting, s.reason) for s in report.skipped)))
    if report.accepted:
        yield _fold(
            "Accepted findings",
            _table(
                ("rung", "check", "tensor", "reason", "until"),
                ((f.rung, f.check, f.tensor, f.reason or f.message, f.until) for f in report.accepted),
            ),
        )
    if report.environment:
        yield _fold("Environment", _table(("", ""), report.environment.items()))
    for finding, more in lines.telling(report):
        yield _finding(finding, more, report)


def _broken(broken: Broken) -> str:
    named = " × ".join(f"{axis} = {broken.values.get(axis, '?')}" for axis in broken.axes) or "no axis"
    where = ", ".join(
        filter(
            None,
            (
                f"check {broken.check}",
                f"step {broken.step}" if broken.step else "",
                broken.tensor,
                words.ranks(broken.ranks),
            ),
        )
    )
    out = [
        f"**{_text(named)}**, {words.together(broken.axes, broken.decided)}: {_text(broken.explanation)}",
        _text(where),
    ]
    if broken.residual:
        out[-1] += f"; {_text(words.residual(broken.residual))}"
    if broken.finding and broken.finding.command:
        out.append(f"Next: {_code(broken.finding.command)}")
    return "  \n".join(out)


def _rungs(table: Table) -> str:
    shown = table.rungs[:MOST_ROWS]
    head = (table.title.lower(), "ranks", "seconds", *table.checks)
    rows = (
        (
            f"{_ICONS[rung.status]} {rung.id}",
            "" if rung.world_size is None else str(rung.world_size),
            words.duration(rung.seconds),
            *(words.SYMBOLS.get(rung.checks.get(check, ""), "") for check in table.checks),
        )
        for rung in shown
    )
    more = len(table.rungs) - len(shown)
    return _table(head, rows) + (f"\n\nand {words.count(more, 'more rung')}" if more else "")


def _finding(finding: Finding, more: int, report: Report) -> str:
    head, *rest = lines.three(finding, report)
    body = "\n".join((head, *(f"     {line}" for line in rest)))
    more_text = f" and {words.count(more, 'more finding')}" if more else ""
    return _fold(f"{finding.rung}: {finding.check}{more_text}", f"<pre>{_text(body, breaks='&#10;')}</pre>")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    spelled = [f"| {' | '.join(map(_text, row))} |" for row in rows]
    return "\n".join((f"| {' | '.join(map(_text, head))} |", f"|{' --- |' * len(head)}", *spelled))


def _fold(title: str, body: str) -> str:
    return f"<details><summary>{_text(title)}</summary>\n\n{body}\n\n</details>"


def _code(text: str) -> str:
    return f"<code>{_text(text)}</code>"


def _text(text: str, breaks: str = "<br>") -> str:
    """Nothing of it is HTML or Markdown: what could be becomes a character reference."""
    escaped = re.sub(r"[\\`*_\[\]#!|~@$:]|^[-+=]", lambda found: f"&#{ord(found[0])};", html.escape(text, quote=False))
    return escaped.replace("\n", breaks)
