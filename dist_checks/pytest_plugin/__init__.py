"""In pytest: tests whose body runs on several ranks, and matrices whose rungs and checks are test items.

Loaded in every pytest run of whoever has dist_checks installed, so it imports nothing but pytest, and registers what
does the work when the first test that wants it has been collected.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dist_checks.pytest_plugin.names import (
    MARKERS,
    MATRICES,
    ON_RANK,
    PRELOAD,
    RANKS,
    RUNG,
    SETTINGS,
    SIZE,
    VERDICT,
)

if TYPE_CHECKING:
    from dist_checks.pytest_plugin.ladder import RungResult


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(MATRICES, "Matrices that are collected when their folder is: globs, from the rootdir.", "args", [])
    parser.addini(PRELOAD, "Modules that ranks have imported before they start.", "args", [])


def pytest_configure(config: pytest.Config) -> None:
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if (mark := metafunc.definition.get_closest_marker(RANKS)) is not None and len(mark.args) > 1:
        metafunc.fixturenames.append(SIZE)
        metafunc.parametrize(SIZE, mark.args, ids=[f"{size}ranks" for size in mark.args], indirect=True)
    if RUNG in metafunc.fixturenames:
        from dist_checks.pytest_plugin.collecting import parametrize

        parametrize(metafunc)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix != ".toml":
        return None
    config = parent.config
    named = parent.session.isinitpath(file_path) and file_path.name not in SETTINGS
    listed = any(file_path in config.rootpath.glob(pattern) for pattern in config.getini(MATRICES))
    if not (named or listed) or config.pluginmanager.has_plugin(ON_RANK):
        return None
    from dist_checks.pytest_plugin.collecting import MatrixFile

    return MatrixFile.from_parent(parent, path=file_path)


def pytest_collection_finish(session: pytest.Session) -> None:
    """What works on tests comes in when there is one to work on."""
    plugins = session.config.pluginmanager
    if plugins.has_plugin(ON_RANK) or session.config.option.collectonly:
        return
    if any(item.get_closest_marker(RANKS) for item in session.items):
        from dist_checks.pytest_plugin.ranks import Ranks

        plugins.register(Ranks(session.config), "dist-checks-ranks")
    if any(hasattr(item, "callspec") and RUNG in item.callspec.params for item in session.items) or any(
        item.path.suffix == ".toml" for item in session.items
    ):
        from dist_checks.pytest_plugin.collecting import want

        want(session)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """The verdict of each matrix, once, in whatever process it was run."""
    reports = (report for reports in terminalreporter.stats.values() for report in reports)
    told = dict.fromkeys(text for report in reports if (text := getattr(report, VERDICT, "")))
    for text in told:
        terminalreporter.section("dist-checks")
        terminalreporter.line(text)


@pytest.fixture(name=SIZE)
def _size(request: pytest.FixtureRequest) -> int:
    """The number of ranks, of a test that runs on several."""
    return int(request.param)


@pytest.fixture
def dist_checks_rung(request: pytest.FixtureRequest) -> RungResult:
    """What came of one rung of the matrix that ``@pytest.mark.dist_checks_matrix`` or the ini option names."""
    from dist_checks.pytest_plugin.collecting import result

    return result(request)
