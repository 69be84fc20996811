"""Matrices as pytest collects them: a file of rungs of checks, and a fixture that goes through the rungs."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from dist_checks.judging.checks import asked
from dist_checks.matrix import ConfigError
from dist_checks.pytest_plugin.ladder import Ladder, RungResult
from dist_checks.pytest_plugin.names import MATRICES, MATRIX, ON_RANK, RUNG, VERDICT
from dist_checks.rung import Role, Rung
from launch.base import LaunchError

LADDERS = pytest.StashKey[dict[Path, Ladder]]()
PLUGIN = "dist-checks-matrices"
ROLES = (Role.SINGLE, Role.RUNG)
"""What the fixture goes through: not those that are run only to be compared with another one."""


def ladder_of(path: Path, config: pytest.Config) -> Ladder:
    """The same for all who ask in this session."""
    ladders = config.stash.setdefault(LADDERS, {})
    return ladders.setdefault(path, Ladder(path, config))


class MatrixFile(pytest.File):
    def collect(self) -> Iterator[pytest.Collector]:
        ladder = ladder_of(self.path, self.config)
        try:
            rungs = ladder.plan.rungs
        except (ConfigError, LaunchError) as error:
            raise self.CollectError(str(error)) from None
        for rung in rungs:
            yield RungCollector.from_parent(self, name=rung.id, rung=rung)


class RungCollector(pytest.Collector):
    def __init__(self, *, rung: Rung, **fields: Any) -> None:
        super().__init__(**fields)
        self._rung = rung

    def collect(self) -> Iterator[pytest.Item]:
        for check, _ in asked(self._rung):
            yield CheckItem.from_parent(self, name=check, rung=self._rung.id)


class NotPassed(Exception):
    """A check of a rung fails, or could not be decided. Says what the judge says."""


class CheckItem(pytest.Item):
    def __init__(self, *, rung: str, **fields: Any) -> None:
        super().__init__(**fields)
        self.rung = rung

    @property
    def ladder(self) -> Ladder:
        return ladder_of(self.path, self.config)

    def runtest(self) -> None:
        try:
            status, words = self.ladder.told(self.rung, self.name)
        except (ConfigError, LaunchError) as error:
            raise NotPassed(str(error)) from None
        if status == "skip":
            pytest.skip(words)
        if status == "inconclusive":
            raise NotPassed(f"INCONCLUSIVE: this could not be decided, which is no pass\n{words}")
        if status == "fail":
            raise NotPassed(words)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, NotPassed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.rung} {self.name}"


class Matrices:
    """The plugin of a session in which a result of a matrix is wanted."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """The ladder, which has deadlines of its own, takes nothing of the time that pytest-timeout gives a test."""
        if (ladder := _ladder_of_item(item)) is not None:
            ladder.prepare()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        ladder = _ladder_of_item(item)
        if ladder is not None and call.when == "call":
            setattr(report, VERDICT, ladder.verdict)
            if isinstance(item, CheckItem) and report.skipped and isinstance(report.longrepr, tuple):
                report.longrepr = (str(item.path), 1, report.longrepr[2])
        return report


def want(session: pytest.Session) -> None:
    """When all is collected and chosen: only what a chosen test needs is going to be run."""
    for item in session.items:
        if isinstance(item, CheckItem):
            item.ladder.wanted.add(item.rung)
        elif (param := _param(item)) is not None:
            ladder_of(param[0], session.config).wanted.add(param[1])
    session.config.pluginmanager.register(Matrices(), PLUGIN)


def _param(item: pytest.Item) -> tuple[Path, str] | None:
    callspec = getattr(item, "callspec", None)
    found: tuple[Path, str] | None = callspec.params.get(RUNG) if callspec is not None else None
    return found


def _ladder_of_item(item: pytest.Item) -> Ladder | None:
    if isinstance(item, CheckItem):
        return item.ladder
    param = _param(item)
    return ladder_of(param[0], item.config) if param is not None else None


def parametrize(metafunc: pytest.Metafunc) -> None:
    """A test that takes the fixture is run for every rung of its matrix."""
    config = metafunc.config
    if config.pluginmanager.has_plugin(ON_RANK):  # of another test of the same file: a rank plans nothing
        metafunc.parametrize(RUNG, [], indirect=True)
        return
    values: list[tuple[Path, str]] = []
    paths = list(_matrices(metafunc))
    for path in paths:
        try:
            rungs = ladder_of(path, config).plan.rungs
        except (ConfigError, LaunchError) as error:
            raise pytest.Collector.CollectError(str(error)) from None
        values += [(path, rung.id) for rung in rungs if rung.role in ROLES]
    if paths:
        ids = [rung if len(paths) == 1 else f"{path.stem}-{rung}" for path, rung in values]
        metafunc.parametrize(RUNG, values, ids=ids, indirect=True)


def _matrices(metafunc: pytest.Metafunc) -> Iterator[Path]:
    config, mark = metafunc.config, metafunc.definition.get_closest_marker(MATRIX)
    if mark is None:
        for pattern in config.getini(MATRICES):
            yield from sorted(config.rootpath.glob(pattern))
        return
    for name in mark.args:
        beside = metafunc.definition.path.parent / name
        yield beside if beside.exists() else config.rootpath / name


def result(request: pytest.FixtureRequest) -> RungResult:
    if not hasattr(request, "param"):
        pytest.fail(
            f"{RUNG} needs a matrix: @pytest.mark.{MATRIX}('matrix.toml') or the ini option {MATRICES}", pytrace=False
        )
    path, rung = request.param
    try:
        return ladder_of(path, request.config).result(rung)
    except (ConfigError, LaunchError) as error:
        pytest.fail(str(error), pytrace=False)
