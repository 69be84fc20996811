"""Pictures of rung zero for the page: loss with what is to be expected, gradient norm, heat maps, the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup, escape

from dist_checks.report import batch, classes, svg
from dist_checks.report.visible import shorten

CELL, ROW, LEFT = 14, 11, 190
COLOURS = ("#f4f1ea", "#d7e3ec", "#a9c6dd", "#6f9fc6", "#3f76ad", "#1d4b85", "#0b2550")
"""From the smallest to the largest value of a map."""


def pictures(health: Mapping[str, Any], losses: Sequence[float | None]) -> Markup:
    """Everything about one rung; empty where nothing was recorded. Never raises for what is missing."""
    parts = [_loss(health, losses), _norm(health)]
    heat = health.get("heat") or {}
    for key, words in (("update", "update over weight"), ("gradient", "gradient over weight")):
        if heat.get(key):
            parts.append(_figure(f"{words}, log10, by parameter and step", heat_map(words, heat, heat[key])))
    charts = Markup('<div class="charts">{}</div>').format(Markup("").join(parts))
    return charts + _activations(health) + classes.tables(health) + _shown(health) + _data(health)


def _figure(caption: str, drawing: Markup) -> Markup:
    return Markup("<figure><figcaption>{}</figcaption>{}</figure>").format(caption, drawing)


def _loss(health: Mapping[str, Any], losses: Sequence[float | None]) -> Markup:
    steps = list(health.get("steps") or ())[: len(losses)]
    if not steps:
        return Markup("")
    lines = [svg.Line(kind="value", values=list(losses)[: len(steps)])]
    lines += [svg.Line(kind="reference", values=[value] * len(steps)) for value in (health.get("lines") or {}).values()]
    named = ", ".join(f"{name} {value:.3g}" for name, value in (health.get("lines") or {}).items())
    held = health.get("validation") or []
    more = f"; validation {held[0][1]:.3g} to {held[-1][1]:.3g}" if held else ""
    return _figure(f"loss; dashed: {named}{more}", svg.chart("loss with what is to be expected", steps, lines))


def _norm(health: Mapping[str, Any]) -> Markup:
    norms, clip = list(health.get("norm") or ()), health.get("clip")
    if not any(norm is not None for norm in norms):
        return Markup("")
    known = [float(norm) if isinstance(norm, (int, float)) else None for norm in norms]
    lines = [svg.Line(kind="value", values=known)]
    if clip is not None:
        lines.append(svg.Line(kind="reference", values=[float(clip)] * len(norms)))
    caption = "gradient norm" + (f"; dashed: clipped to {clip:g}" if clip is not None else "")
    return _figure(caption, svg.chart("gradient norm for each step", health["steps"], lines))


def heat_map(label: str, heat: Mapping[str, Any], values: Sequence[Sequence[float | None]]) -> Markup:
    """A row for each parameter, a column for each step."""
    names, steps = list(heat["names"]), list(heat["steps"])
    flat = [value for row in values for value in row if isinstance(value, (int, float))]
    if not flat:
        return Markup("")
    low, high = min(flat), max(flat)
    width, height = LEFT + CELL * len(steps) + 8, ROW * len(names) + 18
    parts = []
    for at, (name, row) in enumerate(zip(names, values, strict=False)):
        y = at * ROW
        parts.append(
            Markup('<text x="{}" y="{}" text-anchor="end">{}</text>').format(LEFT - 6, y + 9, shorten(name, 32))
        )
        for column, value in enumerate(row):
            if not isinstance(value, (int, float)):
                continue
            shade = COLOURS[min(len(COLOURS) - 1, int((value - low) / (high - low or 1.0) * len(COLOURS)))]
            parts.append(
                Markup('<rect x="{}" y="{}" width="{}" height="{}" fill="{}"><title>{}</title></rect>').format(
                    LEFT + column * CELL, y, CELL - 1, ROW - 1, shade, f"{name}, step {steps[column]}: 1e{value:.1f}"
                )
            )
    parts.append(
        Markup('<text x="{}" y="{}">{}</text>').format(
            LEFT, height - 4, f"steps {steps[0]} to {steps[-1]}; light 1e{low:.1f}, dark 1e{high:.1f}"
        )
    )
    return Markup(
        '<svg role="img" aria-label="{}" width="{}" height="{}" viewBox="0 0 {} {}" font-size="9" '
        'fill="currentColor">{}</svg>'
    ).format(label, width, height, width, height, Markup("").join(parts))


def _activations(health: Mapping[str, Any]) -> Markup:
    rows = health.get("activations") or ()
    if not rows:
        return Markup("")
    cells = Markup("").join(
        Markup('<tr><th scope="row"><code>{}</code></th><td>{}</td>{}</tr>').format(
            row["module"] or "the model",
            row["function"],
            Markup("").join(
                Markup('<td class="figure">{}</td>').format(f"{row[key]:.3g}")
                for key in ("zeros", "dead", "saturated", "largest", "std")
            ),
        )
        for row in rows[:40]
    )
    return Markup(
        '<details><summary>activation functions before the first step</summary><div class="wide"><table><thead><tr>'
        '<th scope="col">module</th><th scope="col">function</th><th scope="col" class="figure">zeros</th>'
        '<th scope="col" class="figure">dead units</th><th scope="col" class="figure">at the end</th>'
        '<th scope="col" class="figure">largest</th><th scope="col" class="figure">std</th></tr></thead>'
        "<tbody>{}</tbody></table></div></details>"
    ).format(cells)


def _shown(health: Mapping[str, Any]) -> Markup:
    shown = health.get("shown") or {}
    if not shown.get("rows"):
        return Markup("")
    text = Markup("<pre>{}</pre>").format(escape(batch.page(shown)))
    return Markup("<details><summary>what the model receives first</summary>{}</details>").format(text)


def _data(health: Mapping[str, Any]) -> Markup:
    data = health.get("data") or {}
    if not data:
        return Markup("")
    whole, first = data["fingerprint"], data["first_batch"]
    said = [f"{data['samples']} samples, fingerprint {whole:08x}"]
    if first is not None:
        said[0] += f", first batch {first:08x}"
    said += [
        f"{words} {five[0]} to {five[4]}, half of them {five[1]} to {five[3]}, {five[2]} in the middle"
        for words, key in (("lengths", "lengths"), ("targets of a sample", "targets"))
        if len(five := list(data.get(key) or [])) == 5
    ]
    if shares := ", ".join(f"{label} ({share:.1%})" for label, share in data.get("labels") or ()):
        said.append(f"most frequent labels {shares}")
    return Markup('<p class="data">data: {}</p>').format("; ".join(said))
