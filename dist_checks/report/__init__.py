"""Pages from report.json, which is all that they know: a page can be made again from a stored run, anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dist_checks.report import html, junit

Writer = Callable[[Mapping[str, Any], Path], None]

PAGES: tuple[tuple[str, str, Writer], ...] = (
    ("html", "report.html", html.write),
    ("junit", "junit.xml", junit.write),
)
"""What lies in every run folder: name, file, writer. The others write where they are told to (github, terminal)."""


def write_pages(report: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """All of PAGES, in ``folder``; the links for ``terminal.summary``."""
    links = {}
    for name, file, write in PAGES:
        links[name] = folder / file
        write(report, links[name])
    return links
