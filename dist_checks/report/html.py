"""The page: one self-contained HTML file, right without any script and legible without its style sheet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from dist_checks.report import lines, svg, words
from dist_checks.report.health import pictures
from dist_checks.report.read import read
from dist_checks.report.view import Finding, Report, Rung, Series


def write(report: Mapping[str, Any], path: Path) -> None:
    path.write_text(render(read(report)), encoding="utf-8", newline="\n")


def render(report: Report) -> str:
    """The whole page. Everything that comes from the report is escaped by the template."""
    template, css = _parts()
    return template.render(
        report=report,
        css=css,
        verdict=_verdict(report),
        failing={(f.rung, f.check): f for f in reversed(report.findings) if f.status != "pass"},
        troubled=[rung for rung in report.rungs if rung.status != "pass"],
        passing=[rung for rung in report.rungs if rung.status == "pass"],
        would_have_seen=lines.would_have_seen(report),
        seen=lambda finding: lines.seen(finding, report),
        by_check=by_check,
        loss_chart=loss_chart,
        distance_chart=distance_chart,
        contributions=contributions,
        health=health,
        worst=worst,
        repair=svg.repair,
        words=words,
    )


@cache
def _parts() -> tuple[Template, Markup]:
    here = files(__package__)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(here.joinpath("page.html.j2").read_text(encoding="utf-8"))
    return template, Markup(here.joinpath("page.css").read_text(encoding="utf-8"))


def _verdict(report: Report) -> tuple[str, str]:
    """The status word, and what the sentence says after it."""
    word, _, rest = report.sentence.partition(" ")
    return (word, rest) if word.lower() == report.status else (report.status.upper(), report.sentence)


def loss_chart(rung: Rung, width: int, height: int) -> Markup:
    """Of the rung, over that of its reference, which is dashed."""
    series = rung.series
    if series is None or _empty(series.loss):
        return Markup("")
    tips = [f"step {words.number(s)}: {words.number(v, 6)}" for s, v in zip(series.steps, series.loss, strict=True)]
    curves = [svg.Line(kind="value", values=series.loss, tips=tips)]
    if not _empty(series.reference_loss):
        curves.append(svg.Line(kind="reference", values=series.reference_loss))
    return svg.chart(f"loss of {rung.id} for each step", series.steps, curves, width=width, height=height)


def distance_chart(rung: Rung, width: int, height: int) -> Markup:
    """Of the gradients to those of the reference, on a log scale, over what is allowed."""
    series = rung.series
    if series is None or _empty(series.distance):
        return Markup("")
    label = f"largest relative distance of a gradient of {rung.id} to {rung.reference or 'the reference'} for each step"
    curve = svg.Line(kind="value", values=series.distance, tips=_tips(series))
    return svg.chart(label, series.steps, [curve], allowed=series.allowed, log=True, width=width, height=height)


def by_check(rung: Rung) -> list[tuple[Finding, list[Finding]]]:
    """What a person must look at: the first finding of each check, with the others of the same."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in rung.findings:
        if finding.status not in ("pass", "skip"):
            groups.setdefault((finding.status, finding.check), []).append(finding)
    ordered = sorted(groups.values(), key=lambda group: -words.STATUSES.index(group[0].status))
    return [(group[0], group[1:]) for group in ordered]


def contributions(rung: Rung) -> Markup:
    items = [(share.label, share.weight) for share in rung.contributions]
    return svg.bars(f"weights with which samples entered the gradient of {rung.id}", items)


def health(rung: Rung) -> Markup:
    """Of rung zero; a damaged report has no pictures, and is shown all the same."""
    if not rung.health:
        return Markup("")
    try:
        return pictures(rung.health, rung.series.loss if rung.series else ())
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        return Markup("")


def worst(rung: Rung) -> str:
    """How near to failing the gradients came: ``3e-15 of 1e-10 allowed``."""
    series = rung.series
    pairs = list(zip(series.distance, series.allowed, strict=True)) if series else []
    known = [(seen, limit) for seen, limit in pairs if seen is not None and limit and limit > 0]
    if not known:
        return ""
    seen, limit = max(known, key=lambda pair: math.inf if math.isnan(pair[0] / pair[1]) else pair[0] / pair[1])
    return f"{words.number(seen, 2)} of {words.number(limit, 2)} allowed"


def _tips(series: Series) -> list[str]:
    tips = []
    for index, (step, distance, limit) in enumerate(zip(series.steps, series.distance, series.allowed, strict=True)):
        tensor = series.tensors[index] if index < len(series.tensors) else ""
        tip = f"step {words.number(step)}: {words.number(distance)}"
        tip += "" if limit is None else f", {words.number(limit)} allowed"
        tips.append(f"{tip}\n{tensor}" if tensor else tip)
    return tips


def _empty(values: tuple[float | None, ...]) -> bool:
    return all(value is None for value in values)
