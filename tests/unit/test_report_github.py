"""The step summary keeps to its budget, and text from a run is neither Markdown nor HTML in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from report_samples import NAMES, malformed, sample

from dist_checks.report import github
from dist_checks.report.read import read


def huge() -> dict[str, object]:
    report = sample("fail")
    finding = report["findings"][0]
    report["findings"] = [{**finding, "check": f"check{i}", "message": "ü|<" * 900} for i in range(200)]
    return report


@pytest.mark.parametrize("name", NAMES)
def test_renders_with_the_sentence_first(name: str) -> None:
    assert re.match(r"## . (PASS|FAIL|INCONCLUSIVE) ", github.markdown(read(sample(name))))


@pytest.mark.parametrize("budget", [100, 1000, 5000, github.BUDGET])
def test_keeps_to_the_budget(budget: int) -> None:
    text = github.markdown(read(huge()), budget)
    assert len(text.encode()) <= budget
    if budget >= 1000:
        assert "More did not fit here" in text
        assert text.count("<details>") == text.count("</details>")


def test_appends_within_what_is_left(tmp_path: Path) -> None:
    path = tmp_path / "summary.md"
    path.write_text("x" * (github.BUDGET - 2000), encoding="utf-8")
    github.write(huge(), path)
    assert github.BUDGET - 2000 < path.stat().st_size <= github.BUDGET
    github.write(huge(), tmp_path / "new.md")
    assert (tmp_path / "new.md").stat().st_size <= github.BUDGET


def test_hostile_text_stays_text() -> None:
    text = github.markdown(read(sample("hostile")))
    tags = set(re.findall(r"<(/?\w+)", text))
    assert tags <= {f"{slash}{tag}" for slash in ("", "/") for tag in ("details", "summary", "pre", "code", "br")}
    for syntax in ("[link]", "**star", "`tick`", "@team", "team #1", "http://", "\x1b"):
        assert syntax not in text


def test_tables_have_as_many_cells_as_their_head() -> None:
    for name in NAMES:
        for table in re.findall(r"(?:^\|.*\|\n?)+", github.markdown(read(sample(name))), re.MULTILINE):
            assert len({row.count("|") for row in table.splitlines()}) == 1


def test_whatever_is_missing_there_is_a_summary() -> None:
    for report in malformed():
        assert github.markdown(read(report)).startswith("## ")
