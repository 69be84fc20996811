"""JUnit XML that CI can read, and that is never greener than the verdict."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
from report_samples import NAMES, malformed, sample

from dist_checks.report import junit
from dist_checks.report.read import read


@pytest.mark.parametrize("name", NAMES)
def test_counts_agree_with_the_cases(name: str, tmp_path: Path) -> None:
    junit.write(sample(name), tmp_path / "junit.xml")
    root = ElementTree.parse(tmp_path / "junit.xml").getroot()
    for scope in (root, *root):
        cases = scope.findall(".//testcase")
        met = Counter(child.tag for case in cases for child in case)
        assert {name: int(scope.get(name, "")) for name in ("tests", "failures", "errors", "skipped")} == {
            "tests": len(cases),
            "failures": met["failure"],
            "errors": met["error"],
            "skipped": met["skipped"],
        }


def test_a_suite_for_each_rung_a_case_for_each_check() -> None:
    report = sample("fail")
    root = junit.document(read(report))
    assert [suite.get("name") for suite in root] == [rung["id"] for rung in report["rungs"]]
    for suite, rung in zip(root, report["rungs"], strict=True):
        assert [case.get("name") for case in suite] == list(rung["checks"])
        for case in suite:
            expected = {"pass": [], "fail": ["failure"], "skip": ["skipped"], "inconclusive": ["error"]}
            assert [child.tag for child in case] == expected[rung["checks"][case.get("name")]]


def test_a_failure_tells_the_finding() -> None:
    failure = junit.document(read(sample("fail"))).find(".//testsuite[@name='tp2']/testcase[@name='gradients']/failure")
    assert failure is not None
    assert (failure.get("message") or "").startswith("the gradients of blocks.*.norm*.weight are the partial sum")
    assert "FAIL gradients  tp2  step 0  blocks.0.norm1.weight" in (failure.text or "")
    assert "blocks.1.norm1.weight" in (failure.text or "")


def test_illegal_characters_are_visible(tmp_path: Path) -> None:
    junit.write(sample("hostile"), tmp_path / "junit.xml")
    text = (tmp_path / "junit.xml").read_text(encoding="utf-8")
    assert "\\x1b[31mValueError" in text
    assert "\\ud800 \\ufffe" in text
    ElementTree.fromstring(text.encode())


@pytest.mark.parametrize(
    "report",
    [
        {},
        {"status": "pass", "rungs": []},
        {"status": "inconclusive", "rungs": [{"id": "a", "status": "pass", "checks": {"loss": "pass"}}]},
        {"status": "fail", "rungs": [{"id": "a", "status": "pass", "checks": {"loss": "skip"}}]},
        {"status": "pass", "rungs": [{"id": "a", "status": "pass"}]},
    ],
)
def test_never_green_by_absence(report: dict[str, object]) -> None:
    root = junit.document(read(report))
    assert int(root.get("failures", 0)) + int(root.get("errors", 0)) > 0


def test_whatever_is_missing_there_is_a_file() -> None:
    for report in malformed():
        ElementTree.fromstring(ElementTree.tostring(junit.document(read(report))))
