"""A batch as a person reads it: what the model receives, token by token, over what it has to foretell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dist_checks.report.visible import visible

WIDTH = 100
IGNORED = "·"


def page(answer: Mapping[str, Any]) -> str:
    """At most one terminal page: each sample in pairs of lines, cut into pieces of WIDTH columns."""
    shape = " x ".join(map(str, answer.get("shape", ())))
    out = [f"inputs ({shape}) over targets, token by token; {IGNORED} where a target is ignored"]
    for row in answer.get("rows", ()):
        source = f", {visible(row['source'])}" if row.get("source") else ""
        out.append(f"sample {row['id']}{source}")
        out += lines(row)
    return "\n".join(out)


def lines(row: Mapping[str, Any]) -> list[str]:
    """Pairs of lines of one sample."""
    targets = [IGNORED if target is None else _token(target) for target in row["targets"]]
    if row.get("inputs") is None:
        return [f"  inputs   {visible(row.get('figures', ''))}", f"  targets  {' '.join(targets)[:WIDTH]}"]
    inputs = [_token(token) for token in row["inputs"]]
    if len(targets) != len(inputs):
        return _of_the_whole(inputs, targets)
    while inputs and inputs[-1] == "<pad>" and targets[len(inputs) - 1] == IGNORED:
        inputs.pop()
    padding = len(row["inputs"]) - len(inputs)
    numbers = row.get("documents")
    out = []
    for start, stop in _pieces(inputs, targets):
        cells = list(zip(inputs[start:stop], targets[start:stop], strict=False))
        widths = [max(len(one), len(two)) for one, two in cells]
        out.append("  inputs   " + _row([one for one, _ in cells], widths))
        out.append("  targets  " + _row([two for _, two in cells], widths))
        if numbers is not None:
            out.append("  document " + _row([str(n) for n in numbers[start:stop]], widths))
    return [*out, f"  and {padding} of padding, ignored"] if padding else out


def _of_the_whole(inputs: Sequence[str], targets: Sequence[str]) -> list[str]:
    """Where a sample has a label, or several tags, of its own: there is nothing to align."""
    real = list(inputs)
    while real and real[-1] == "<pad>":
        real.pop()
    out = [
        "  inputs   " + _row(real[start:stop], [len(token) for token in real[start:stop]])
        for start, stop in _pieces(real, real)
    ]
    padding = len(inputs) - len(real)
    return [*out, "  targets  " + ", ".join(targets)[:WIDTH], *([f"  and {padding} of padding"] if padding else [])]


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(f"{cell:{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip()


def _pieces(inputs: Sequence[str], targets: Sequence[str]) -> list[tuple[int, int]]:
    out, start, used = [], 0, 0
    for at, (one, two) in enumerate(zip(inputs, targets, strict=False)):
        width = max(len(one), len(two)) + 1
        if used + width > WIDTH and at > start:
            out.append((start, at))
            start, used = at, 0
        used += width
    return [*out, (start, min(len(inputs), len(targets)))] if inputs else out


def _token(text: object) -> str:
    return visible(text).replace(" ", "_") or "''"
