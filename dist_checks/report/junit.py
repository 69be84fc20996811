"""JUnit XML, for CI: a suite for each rung, a case for each check."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ElementTree, SubElement, indent

from dist_checks.report import lines, words
from dist_checks.report.read import read
from dist_checks.report.view import Finding, Report, Rung

_ELEMENTS = {"fail": "failure", "inconclusive": "error", "skip": "skipped", "accepted": "skipped"}
"""Never green by absence: what could not be decided is an error."""


def write(report: Mapping[str, Any], path: Path) -> None:
    root = document(read(report))
    indent(root)
    ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def document(report: Report) -> Element:
    """The ``testsuites`` element. The verdict is a suite of its own where the rungs alone would look green."""
    root = Element("testsuites", name="dist_checks")
    for rung in report.rungs:
        _suite(root, rung.id, rung.seconds, _cases(rung), report)
    green = not (root.findall(".//failure") or root.findall(".//error"))
    if green and (report.status != "pass" or not report.rungs):
        _suite(root, "verdict", None, {"verdict": ("fail" if report.status == "fail" else "inconclusive", [])}, report)
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, 0)) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', 0)) for suite in root):.3f}")
    return root


def _cases(rung: Rung) -> dict[str, tuple[str, list[Finding]]]:
    """Status and findings of each check; the rung itself where it got no further."""
    cases = {
        check: (status, [finding for finding in rung.findings if finding.check == check])
        for check, status in rung.checks.items()
    }
    return cases or {"rung": (rung.status if rung.status != "pass" else "inconclusive", [])}


def _suite(
    root: Element,
    name: str,
    seconds: float | None,
    cases: Mapping[str, tuple[str, list[Finding]]],
    report: Report,
) -> None:
    met = [status for status, _ in cases.values()]
    suite = SubElement(
        root,
        "testsuite",
        name=name,
        tests=str(len(met)),
        failures=str(met.count("fail")),
        errors=str(met.count("inconclusive")),
        skipped=str(met.count("skip") + met.count("accepted")),
    )
    if spelled := words.duration(seconds) and f"{seconds:.3f}":
        suite.set("time", spelled)
    for check, (status, findings) in cases.items():
        case = SubElement(suite, "testcase", classname=f"dist_checks.{name}", name=check)
        if status == "pass":
            continue
        telling = [finding for finding in findings if finding.status == status] or findings
        detail = SubElement(case, _ELEMENTS[status])
        detail.set("message", _message(status, telling, report))
        if telling and status != "skip":
            detail.set("type", check)
            detail.text = "\n\n".join("\n     ".join(lines.three(finding, report)) for finding in telling)


def _message(status: str, findings: list[Finding], report: Report) -> str:
    if not findings:
        return f"{status}, and no finding says why; the verdict: {report.sentence}"
    finding = findings[0]
    return (finding.explanation or lines.seen(finding, report) or lines.headline(finding)).splitlines()[0]
