"""The page is valid, self-contained, and shows text from a run as text."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_samples import NAMES, malformed, sample

from dist_checks.report import html
from dist_checks.report.read import read

VOID = {"meta", "br", "link", "img", "hr", "input"}


class Page(HTMLParser):
    """Fails on tags that do not nest, and remembers what the page holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data

    def all(self, name: str) -> list[str]:
        return [value or "" for key, value in self.attributes if key == name]


@pytest.fixture(params=NAMES)
def page(request: pytest.FixtureRequest) -> Page:
    return Page(html.render(read(sample(request.param))))


def test_no_script_no_inline_style_nothing_from_outside(page: Page) -> None:
    assert not {"script", "img", "link", "iframe", "object", "base", "form"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("style", "src", "xlink:href")]
    assert all(target.startswith("#") for target in page.all("href"))


def test_style_sheet_takes_nothing_from_outside() -> None:
    css = (Path(html.__file__).parent / "page.css").read_text(encoding="utf-8")
    assert not [word for word in ("url(", "@import", "http", "</") if word in css]


def test_links_lead_somewhere(page: Page) -> None:
    ids = page.all("id")
    assert len(ids) == len(set(ids))
    assert {target.removeprefix("#") for target in page.all("href")} <= set(ids)


def test_hostile_text_is_shown_not_obeyed() -> None:
    page = Page(html.render(read(sample("hostile"))))
    assert "<script>alert(2)</script>" in page.text
    assert "<img src=x onerror=alert(1)>" in page.text
    assert "\\x1b[31m" in page.text
    assert not set(page.text) & set("\x1b\x07\r\u202e")


def test_a_failure_shows_what_why_and_what_next() -> None:
    page = Page(html.render(read(sample("fail"))))
    for shown in (
        "broken: tp (alone); dp_replicate x accum (only together)",
        "a mean of means",
        "0.116 → 4.4e-15 when undone",
        "dist-checks run matrix.toml -k tp2 --steps 1",
        "weight with which samples entered the gradient of the first step",
        "has no context-parallel form inside tp",
        "the trainer prints the norm of the step before",
        "in fp64 any scale error above 3.1e-10 of half of the gradients, above 3.1e-10 of any",
    ):
        assert shown in page.text
    assert "finding-1" in page.all("id")


def test_status_is_not_told_by_colour_alone() -> None:
    page = Page(html.render(read(sample("fail"))))
    assert {"gradients: fail", "engaged: inconclusive", "contributions: skip"} <= set(page.all("title"))
    assert {"✓", "✗", "?", "–"} <= set(page.text)


def test_whatever_is_missing_there_is_a_page() -> None:
    for report in malformed():
        Page(html.render(read(report)))


def test_a_rung_that_only_findings_know_is_shown() -> None:
    report = read({"status": "fail", "findings": [{"check": "completes", "rung": "tp2", "status": "fail"}]})
    assert [(rung.id, rung.status, rung.checks) for rung in report.rungs] == [("tp2", "fail", {"completes": "fail"})]


def test_an_unknown_status_is_never_a_pass() -> None:
    report = read({"status": "ok", "rungs": [{"id": "tp2", "status": 0, "checks": {"loss": True, "shards": None}}]})
    assert report.status == "inconclusive"
    assert report.rungs[0].status == "inconclusive"
    assert set(report.rungs[0].checks.values()) == {"inconclusive"}


def test_written_file_is_utf8(tmp_path: Path) -> None:
    html.write(sample("hostile"), tmp_path / "report.html")
    assert "INCONCLUSIVE" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_sensitivity_and_weights_as_the_judge_writes_them() -> None:
    judged = {
        "id": "tp2",
        "sensitivity": {
            "sentence": "any scale error above ...",
            "median": {"tensor": "wo", "scale": 3e-10},
            "coarsest": {"tensor": "wq", "scale": 4e-10},
        },
        "contributions": {"ids": [7, 9], "weights": [2.0, "nan"]},
        "series": {"steps": [0], "gradient_distance": [1e-15], "gradient_allowed": [1e-10]},
    }
    rung = read({"rungs": [judged]}).rungs[0]
    assert rung.sensitivity is not None
    assert (rung.sensitivity.half, rung.sensitivity.coarsest, rung.sensitivity.tensor) == (3e-10, 4e-10, "wq")
    assert [(share.label, str(share.weight)) for share in rung.contributions] == [
        ("sample 7", "2.0"),
        ("sample 9", "nan"),
    ]
    assert rung.series is not None
    assert rung.series.allowed == (1e-10,)
