"""The drawings of the page: inline SVG that is right without a style sheet, and takes its colours from one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

from markupsafe import Markup, escape

from dist_checks.report.scale import Scale
from dist_checks.report.visible import shorten
from dist_checks.report.words import number

MOST_POINTS = 240
"""A longer curve is thinned, keeping the extremes of what it leaves out."""
MOST_DOTS = 60
"""Up to here every point is a dot of its own."""
MOST_BARS = 40

_LOOKS: dict[str, dict[str, str | float]] = {
    "value": {"stroke": "#2257a0", "stroke_width": 1.6},
    "reference": {"stroke": "#8b8780", "stroke_width": 1.4, "stroke_dasharray": "4 3"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    kind: Literal["value", "reference"]
    values: Sequence[float | None]
    tips: Sequence[str] = ()
    """Shown over each point."""


def chart(
    label: str,
    steps: Sequence[float | None],
    lines: Sequence[Line],
    *,
    allowed: Sequence[float | None] = (),
    log: bool = False,
    width: int = 480,
    height: int = 170,
) -> Markup:
    """Lines over the steps, with the allowed band below ``allowed``; points of a value line above it are crosses."""
    left, right, top, bottom = 52.0, width - 10.0, 8.0, height - 20.0
    shown = [value for values in (allowed, *(line.values for line in lines)) for value in values]
    shown += [limit / 10 for limit in allowed if log and limit]  # so that the band below a limit can be seen
    y = Scale.over(shown, top=top, bottom=bottom, log=log)
    xs = _across(steps, left + 6, right - 6)
    half = (xs[1] - xs[0]) / 2 if len(xs) > 1 else (right - left) / 2
    parts = [_band(xs, allowed, y, bottom, half, left, right)] if any(limit is not None for limit in allowed) else []
    for place, text in y.ticks(most=4 if height > 120 else 3):
        parts.append(_tag("line", x1=left, x2=right, y1=place, y2=place, stroke="#8884", class_="grid"))
        parts.append(_tag("text", text, x=left - 6, y=place + 3.5, text_anchor="end"))
    parts.append(_tag("line", x1=left, x2=right, y1=bottom, y2=bottom, stroke="#888", class_="axis"))
    every = max(1, math.ceil(len(xs) / 8))
    for index in range(0, len(xs), every):
        parts.append(_tag("text", number(steps[index], 6), x=xs[index], y=height - 6.0, text_anchor="middle"))
    for line in sorted(lines, key=lambda line: line.kind):  # the reference first: it lies below
        parts.append(_line(line, xs, y, allowed))
    return _svg(label, width, height, parts)


def _across(steps: Sequence[float | None], left: float, right: float) -> list[float]:
    """By the steps' numbers where they rise, else evenly."""
    known = [step for step in steps if step is not None and abs(step) < 1e15]
    rising = len(known) == len(steps) and all(a < b for a, b in pairwise(known))
    at = known if rising else [float(index) for index in range(len(steps))]
    if len(at) < 2:
        return [(left + right) / 2] * len(at)
    return [left + (x - at[0]) / (at[-1] - at[0]) * (right - left) for x in at]


def _band(
    xs: Sequence[float],
    allowed: Sequence[float | None],
    y: Scale,
    bottom: float,
    half: float,
    left: float,
    right: float,
) -> Markup:
    """A box for each stretch of steps with the same limit: later steps may have none."""
    boxes, edges = [], []
    limits = [limit if limit is not None and y.inside(limit) else None for limit in allowed]
    for limit, run in groupby(enumerate(limits), key=lambda entry: entry[1]):
        indices = [index for index, _ in run]
        if limit is None:
            continue
        start, end = max(left, xs[indices[0]] - half), min(right, xs[indices[-1]] + half)
        place = y.at(limit)
        boxes.append(
            _tag("rect", x=start, y=place, width=end - start, height=bottom - place, fill="#3a7d4422", class_="band")
        )
        edges.append(_tag("line", x1=start, x2=end, y1=place, y2=place, stroke="#3a7d44", class_="limit"))
    return Markup("").join(boxes + edges)


def _line(line: Line, xs: Sequence[float], y: Scale, allowed: Sequence[float | None]) -> Markup:
    kept = _thinned(line.values)
    parts = []
    for drawn, run in groupby(kept, key=lambda index: _finite(line.values[index])):
        points = [f"{_coordinate(xs[index])},{_coordinate(y.at(line.values[index] or 0.0))}" for index in run]
        if drawn and len(points) > 1:
            parts.append(_tag("polyline", points=" ".join(points), fill="none", class_=line.kind, **_LOOKS[line.kind]))
    crosses = []
    many = len(kept) > MOST_DOTS
    for index in kept:
        value = line.values[index]
        if value is None:
            continue
        limit = allowed[index] if index < len(allowed) else None
        over = not math.isfinite(value) or (limit is not None and not value <= limit)
        tip = _tag("title", line.tips[index]) if index < len(line.tips) and not many else Markup("")
        x, place = xs[index], y.at(value)
        if over:
            crosses.append((f"M{_coordinate(x - 3.5)} {_coordinate(place - 3.5)}l7 7m0 -7l-7 7", tip))
        elif line.kind == "value" and (not many or not y.inside(value)):
            parts.append(_tag("circle", tip, cx=x, cy=place, r=2.2, fill="#2257a0", class_="dot"))
    if many and crosses:
        crosses = [("".join(cross for cross, _ in crosses), Markup(""))]
    for cross, tip in crosses:
        parts.append(_tag("path", tip, d=cross, fill="none", stroke="#b3261e", stroke_width=2, class_="over"))
    return Markup("").join(parts)


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _thinned(values: Sequence[float | None]) -> list[int]:
    """Indices to draw: of each bucket the least and the greatest, and everything that is not finite."""
    if len(values) <= MOST_POINTS:
        return list(range(len(values)))
    kept = {0, len(values) - 1}
    size = math.ceil(2 * len(values) / MOST_POINTS)
    for start in range(0, len(values), size):
        bucket = range(start, min(start + size, len(values)))
        finite = [(value, index) for index in bucket if (value := values[index]) is not None and math.isfinite(value)]
        kept.update(index for _, index in (*sorted(finite)[:1], *sorted(finite)[-1:]))
        kept.update(next(([index] for index in bucket if not _finite(values[index])), []))
    return sorted(kept)


def bars(label: str, items: Sequence[tuple[str, float | None]], *, right: float = 1.0, width: int = 510) -> Markup:
    """One bar for each value, against a line at ``right``: the weights with which samples entered a gradient."""
    shown = items[:MOST_BARS]
    finite = [value for _, value in shown if value is not None and math.isfinite(value)]
    low, high = min([0.0, *finite]), max([right, *finite]) * 1.02
    low, high = max(low, -1e150), min(high, 1e150)
    start, end, row = 190.0, width - 58.0, 17.0
    height = int(row * len(shown)) + 22

    def x(value: float) -> float:
        return start + (max(low, min(high, value)) - low) / (high - low) * (end - start)

    parts = []
    for index, (name, value) in enumerate(shown):
        place = index * row + 2
        wrong = value is None or not math.isfinite(value) or abs(value - right) > 1e-3 * max(1.0, abs(right))
        parts.append(_tag("text", _tag("title", name), shorten(name, 32), x=start - 8, y=place + 11, text_anchor="end"))
        if value is not None and math.isfinite(value):
            a, b = sorted((x(0.0), x(value)))
            parts.append(
                _tag(
                    "rect",
                    x=a,
                    y=place + 2,
                    width=max(1.0, b - a),
                    height=row - 6,
                    fill="#b3261e" if wrong else "#8b8780",
                    class_="bar wrong" if wrong else "bar",
                )
            )
        parts.append(_tag("text", number(value, 4), x=end + 8, y=place + 11, class_="figure"))
    base = row * len(shown) + 2
    parts.append(_tag("line", x1=x(0), x2=x(0), y1=0, y2=base, stroke="#888", class_="axis"))
    parts.append(
        _tag("line", x1=x(right), x2=x(right), y1=0, y2=base, stroke="#3a7d44", stroke_dasharray="3 2", class_="limit")
    )
    parts.append(_tag("text", f"{right:g} is right", x=x(right), y=base + 14, text_anchor="middle"))
    return _svg(label, width, height, parts)


def repair(before: float | None, after: float | None, *, width: int = 150) -> Markup:
    """How far the distance to the reference falls when the explanation is undone: 1e-17 to 1, on a log scale."""
    x = Scale.over([before, after, 1e-17, 1.0], top=width - 18.0, bottom=18.0, log=True)
    first, last = (None if value is None else x.at(value) for value in (before, after))
    parts = [_tag("line", x1=4, x2=width - 4, y1=6, y2=6, stroke="#8884", class_="grid")]
    if first is not None and last is not None:
        parts.append(_tag("line", x1=first, x2=last, y1=6, y2=6, stroke="#3a7d44", stroke_width=2, class_="limit"))
    for place, colour, look in ((first, "#b3261e", "bar wrong"), (last, "#3a7d44", "good")):
        if place is not None:
            parts.append(_tag("circle", cx=place, cy=6, r=4, fill=colour, class_=look))
    return _svg(f"residual {number(before)} before, {number(after)} after, on a log scale", width, 12, parts)


def _svg(label: str, width: int, height: int, parts: Sequence[Markup]) -> Markup:
    return _tag(
        "svg",
        *parts,
        role="img",
        aria_label=label,
        width=width,
        height=height,
        viewBox=f"0 0 {width} {height}",
        font_size=10.5,
        fill="currentColor",
    )


def _coordinate(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _tag(name: str, *inside: str, **attributes: str | float) -> Markup:
    """Text inside is escaped, drawings are not; numbers are rounded."""
    spelled = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(value) if isinstance(value, str) else _coordinate(value)}"'
        for key, value in attributes.items()
    )
    return Markup(f"<{name}{spelled}>{''.join(map(escape, inside))}</{name}>")
