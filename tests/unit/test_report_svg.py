"""Drawings hold finite numbers only, whatever they are drawn from."""

from __future__ import annotations

import math
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from dist_checks.report import svg
from dist_checks.report.scale import Scale

NAN, INF = math.nan, math.inf
values = st.lists(st.none() | st.floats(), min_size=1, max_size=12)


def places(drawing: str) -> list[float]:
    """All numbers in attributes that are coordinates or sizes."""
    assert drawing.count("<svg") == drawing.count("</svg>") == 1
    found = re.findall(r' (?:x|y|x1|x2|y1|y2|cx|cy|r|width|height|points|d)="([^"]*)"', drawing)
    return [float(number) for text in found for number in re.split(r"[ ,a-zA-Z]+", text) if number]


def on_drawing(drawing: str) -> bool:
    return all(math.isfinite(place) and -10 <= place <= 2000 for place in places(drawing))


@settings(deadline=None, max_examples=60)
@given(values, values, st.booleans())
def test_charts_are_finite(drawn: list[float | None], limits: list[float | None], log: bool) -> None:
    steps = [float(step) for step in range(len(drawn))]
    limits = (limits * len(drawn))[: len(drawn)]
    assert on_drawing(svg.chart("chart", steps, [svg.Line(kind="value", values=drawn)], allowed=limits, log=log))


@settings(deadline=None, max_examples=40)
@given(values, st.none() | st.floats())
def test_bars_and_repairs_are_finite(weights: list[float | None], after: float | None) -> None:
    assert on_drawing(svg.bars("weights", [("a label", weight) for weight in weights]))
    assert on_drawing(svg.repair(weights[0], after))


def test_log_scale_has_a_place_for_every_value() -> None:
    scale = Scale.over([1e-12, 1e-3, 0.0, -1.0, NAN, INF], top=0, bottom=100, log=True)
    assert scale.at(NAN) < scale.at(1e-3) < scale.at(1e-12) < scale.at(0.0)
    assert scale.at(INF) == scale.at(NAN)
    assert scale.at(-1.0) == scale.at(0.0)
    labels = [label for _, label in scale.ticks()]
    assert labels[-2:] == ["nan, inf", "0"]
    assert "10⁻³" in labels


def test_nan_and_too_large_are_crosses_the_rest_are_dots() -> None:
    line = svg.Line(kind="value", values=[1e-15, 1e-3, NAN, None, 0.0])
    drawing = svg.chart("distance", [0, 1, 2, 3, 4], [line], allowed=[1e-10] * 5, log=True)
    assert drawing.count('class="over"') == 2
    assert drawing.count('class="dot"') == 2


def test_band_covers_only_steps_with_a_limit() -> None:
    drawing = svg.chart(
        "distance", [0, 1, 2], [svg.Line(kind="value", values=[1e-15, 1, 1])], allowed=[1e-10, None, None], log=True
    )
    assert drawing.count('class="band"') == 1
    assert drawing.count('class="over"') == 0


def test_long_curves_are_thinned_but_keep_the_peak() -> None:
    curve: list[float | None] = [1.0] * 5000
    curve[3210], curve[4321] = 9.0, NAN
    kept = svg._thinned(curve)
    assert len(kept) <= 1.5 * svg.MOST_POINTS
    assert {0, 3210, 4321, 4999} <= set(kept)


def test_labels_are_escaped() -> None:
    drawing = svg.bars("<b>", [("</svg><script>", 0.5)])
    assert "<b>" not in drawing
    assert "<script>" not in drawing
