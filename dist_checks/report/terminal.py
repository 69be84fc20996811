"""The result on a terminal or in a log: the matrix in short, what failed, where the pages are, the sentence last."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from io import StringIO
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.text import Text

from dist_checks.report import lines, words
from dist_checks.report.colour import COLOURS, in_colour
from dist_checks.report.progress import progress
from dist_checks.report.read import read
from dist_checks.report.view import Report, Rung, Table
from dist_checks.report.visible import shorten, visible

__all__ = ["progress", "render", "summary"]

MOST_RUNGS = 60
"""With more rungs than this, those that pass are only counted."""
MOST_FINDINGS = 12
MOST_LINES = 8
"""Of one finding: the tail of a log belongs on the page."""


def summary(report: Mapping[str, Any], stream: TextIO, *, links: Mapping[str, Path]) -> None:
    """Prints to ``stream``; the same text with and without a terminal, the colours apart."""
    text = render(report, links)
    shown = text.plain + "\n"
    if in_colour(stream):
        inked = Console(file=StringIO(), force_terminal=True, color_system="standard", highlight=False, emoji=False)
        with inked.capture() as capture:
            inked.print(text, soft_wrap=True)
        shown = capture.get()
    encoding = getattr(stream, "encoding", None) or "utf-8"
    stream.write(shown.encode(encoding, "backslashreplace").decode(encoding))
    stream.flush()


def render(report: Mapping[str, Any], links: Mapping[str, Path]) -> Text:
    """The text with its colours; the last line is the report's sentence."""
    view = read(report)
    parts = [part for part in (_tables(view), *_findings(view), _facts(view, links)) if part.plain]
    return Text("\n").join([*(Text("\n").join((part, Text())) for part in parts), _sentence(view)])


def _sentence(view: Report) -> Text:
    text = Text(view.sentence)
    word = view.sentence.partition(" ")[0]
    if word.lower() == view.status:
        text.stylize(COLOURS[view.status], 0, len(word))
    return text


def _tables(view: Report) -> Text:
    """A row for each rung, a letter for each check, as pytest writes them."""
    if not view.rungs:
        return Text()
    shown = view.rungs if len(view.rungs) <= MOST_RUNGS else [rung for rung in view.rungs if rung.status != "pass"]
    names = {rung.id for rung in shown[:MOST_RUNGS]}
    width = min(40, max(map(len, names), default=4))
    tables = [rows for table in view.tables if (rows := _table(table, names, width))]
    out = [text for rows in tables for text in (*([Text()] if rows is not tables[0] else []), *rows)]
    if left := len({rung.id for rung in view.rungs} - names):
        out.append(Text(f"and {words.count(left, 'more rung')}", style="dim"))
    met = {status for rung in view.rungs for status in rung.checks.values()}
    if met:
        out.append(Text("   ".join(f"{words.LETTERS[status]} {status}" for status in words.STATUSES if status in met)))
        out[-1].stylize("dim")
    return Text("\n").join(out)


def _table(table: Table, names: Collection[str], width: int) -> list[Text]:
    rows = [_row(rung, table, width) for rung in table.rungs if rung.id in names]
    if not rows:
        return []
    head = Text(f"{table.title.lower():{width}}  ranks  seconds  status        checks", style="dim")
    told = [f"checks: {', '.join(table.checks)}"]
    told += [f"skipped by all: {', '.join(table.skipped)}"] if table.skipped else []
    return [head, *rows, *(Text(line, style="dim") for line in told)]


def _row(rung: Rung, table: Table, width: int) -> Text:
    ranks = "" if rung.world_size is None else str(rung.world_size)
    seconds = words.duration(rung.seconds).removesuffix(" s")
    row = Text(f"{shorten(rung.id, width):{width}}  {ranks:>5}  {seconds:>7}  ")
    row.append(f"{rung.status.upper() if rung.status == 'fail' else rung.status:12}", COLOURS[rung.status])
    row.append("  ")
    for check in table.checks:
        status = rung.checks.get(check, "")
        row.append(words.LETTERS.get(status, " "), COLOURS.get(status, ""))
    wrong = [check for check in table.checks if rung.checks.get(check) in ("fail", "inconclusive")]
    row.append(f"  {words.listed(wrong, most=4)}" if wrong else "")
    row.rstrip()
    return row


def _findings(view: Report) -> list[Text]:
    telling, rest = lines.first_and_rest(view)
    out = []
    for finding, more in telling[:MOST_FINDINGS]:
        head, *body = lines.three(finding, view)
        if len(body) > MOST_LINES:
            body = [*body[: MOST_LINES - 2], f"... {len(body) - MOST_LINES + 1} more lines", body[-1]]
        text = Text(head)
        text.stylize(COLOURS[finding.status], 0, len(finding.status))
        for line in body:
            text.append(f"\n     {line}")
        if more:
            text.append(f"\n     and {words.count(more, 'more finding')} of this check in this rung", "dim")
        out.append(text)
    if (left := len(telling) - MOST_FINDINGS) > 0:
        out.append(Text(f"and {words.count(left, 'more check')}", style="dim"))
    if rest:
        out.append(Text(rest, style="dim"))
    return out


def _facts(view: Report, links: Mapping[str, Path]) -> Text:
    facts = []
    if view.blamed and view.blamed != "axis":
        facts.append(("blame", words.BLAMED.get(view.blamed, view.blamed)))
    if view.skipped:
        named = words.listed([skipped.setting for skipped in view.skipped], most=4)
        facts.append(("left out", f"{words.count(len(view.skipped), 'combination')}: {named}"))
    if view.accepted:
        facts.append(("accepted", words.count(len(view.accepted), "finding")))
    facts += [("ablation", sentence) for sentence in view.ablations]
    if seen := lines.would_have_seen(view):
        facts.append(("would see", seen))
    facts += [(visible(name), visible(path, limit=4096)) for name, path in links.items()]
    width = max((len(name) for name, _ in facts), default=0)
    return Text("\n").join(Text.assemble((f"{name:{width}}", "dim"), f"  {fact}") for name, fact in facts)
