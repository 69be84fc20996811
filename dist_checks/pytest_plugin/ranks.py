"""Runs tests that are marked ``ranks`` on warm ranks, one launcher for the session, and reports what the ranks tell."""

from __future__ import annotations

import functools
import importlib.util
import os
import pickle
import re
import shutil
import sys
import warnings
from collections.abc import Generator, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dist_checks.pytest_plugin.marker import Wanted
from dist_checks.pytest_plugin.names import OPTIONS, PRELOAD, RANKS
from dist_checks.pytest_plugin.told import PRINTED, Told, told
from launch import Exit, Job, LaunchError, LocalLauncher

ENTRY = "dist_checks.pytest_plugin.rank:main"
ON_RANK = "dist_checks.pytest_plugin.rank"
FLIGHT_RECORDS = "2000"
"""Collectives that torch remembers on each rank, to say what a hang waits for."""
TOLD = pytest.StashKey[Told]()

INSTEAD: Mapping[str, Any] = {
    # What is collected there is one test, chosen here.
    **dict.fromkeys(("keyword", "markexpr"), ""),
    **dict.fromkeys(("deselect", "ignore", "ignore_glob")),
    **dict.fromkeys(("lf", "failedfirst", "newfirst", "stepwise", "stepwise_skip", "cacheclear", "pyargs"), False),
    **dict.fromkeys(("collectonly", "setuponly", "setupplan", "setupshow", "strict_config"), False),
    "plugins": [],
    "maxfail": 0,
    # Nobody can be asked there, and what is printed goes to the log of the rank, whatever prints it.
    **dict.fromkeys(("usepdb", "trace"), False),
    "capture": "no",
    "basetemp": None,
    # What writes files of the session.
    **dict.fromkeys(("xmlpath", "pastebin", "debug", "report_log", "htmlpath", "durations", "log_file")),
    "cov_source": [],
    "no_cov": True,
    "json_report": False,
    # xdist hands tests out, not ranks.
    **dict.fromkeys(("distload", "looponfail"), False),
    **dict.fromkeys(("numprocesses", "maxprocesses")),
    "dist": "no",
    "tx": [],
}
"""Options of the session of a rank that are not those of this session."""
NO_NEWS = (
    "ignore:Module already imported so cannot be rewritten:pytest.PytestAssertRewriteWarning",
    "ignore::pytest.PytestConfigWarning",
)
"""Ranks have much imported already; and what the configuration deserves has been said."""


class Ranks:
    """The plugin of a session that has such tests."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._launcher: LocalLauncher | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Fixtures are set up on the ranks, and the body is called there."""
        if isinstance(item, pytest.Function) and item.get_closest_marker(RANKS) is not None:
            nothing: dict[str, Any] = dict.fromkeys(("setup", "teardown"), lambda: None)
            for name, instead in (*nothing.items(), ("runtest", functools.partial(self._run, item))):
                setattr(item, name, instead)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        found = item.stash.get(TOLD, None)
        if call.when != "call" or found is None:
            return report
        report.sections = [*report.sections, *found.sections]
        item.user_properties.extend(found.properties)  # junit.xml takes those of the report on teardown
        report.user_properties = list(item.user_properties)
        if not found.problem:
            report.outcome, report.longrepr = found.outcome, found.longrepr
            report.__dict__.pop("wasxfail", None)
            if found.wasxfail is not None:
                report.wasxfail = found.wasxfail
            if report.skipped and isinstance(report.longrepr, tuple) and not report.longrepr[0]:
                path, line, _ = item.location
                report.longrepr = (path, (line or 0) + 1, report.longrepr[2])
        return report

    def pytest_unconfigure(self) -> None:
        if self._launcher is not None:
            self._launcher.close()

    def _run(self, item: pytest.Function) -> None:
        wanted = self._wanted(item)
        if importlib.util.find_spec("torch") is None:
            pytest.fail(f"@pytest.mark.{RANKS} needs torch, which is not installed here", pytrace=False)
        folder = self._folder(item)
        job = self._job(item, wanted, folder)
        exit = self._exit_of(job)
        found = item.stash[TOLD] = told(self._config, job, exit)
        self._pass_on(found)
        if found.outcome != "failed":
            shutil.rmtree(job.folder, ignore_errors=True)
        if found.problem:
            pytest.fail(found.problem, pytrace=False)

    def _wanted(self, item: pytest.Function) -> Wanted:
        try:
            return Wanted.of(item)
        except ValueError as error:
            problem = str(error)
        pytest.fail(problem, pytrace=False)

    def _exit_of(self, job: Job) -> Exit:
        if self._launcher is None:
            # Plugins would be imported on every rank of every test: they are modules that this process has imported.
            plugins = (plugin for plugin, _ in self._config.pluginmanager.list_plugin_distinfo())
            names = (plugin.__name__ for plugin in plugins if isinstance(plugin, ModuleType))
            preload = dict.fromkeys((ON_RANK, *self._config.getini(PRELOAD), *names))
            self._launcher = LocalLauncher(preload=tuple(preload))
        try:
            (exit,) = self._launcher.run([job])
            return exit
        except LaunchError as error:
            problem = f"@pytest.mark.{RANKS}: no rank can be started: {error}"
        pytest.fail(problem, pytrace=False)

    def _folder(self, item: pytest.Item) -> Path:
        name = re.sub(r"\W", "_", item.name)[:30]
        folder: Path = self._config._tmp_path_factory.mktemp(name)  # type: ignore[attr-defined]  # set by tmp_path
        return folder

    def _job(self, item: pytest.Function, wanted: Wanted, base: Path) -> Job:
        folder, tmp_path = base / "ranks", base / "tmp"
        for each in (folder, tmp_path):
            each.mkdir()
        (folder / OPTIONS).write_bytes(self._options)
        _, _, name = item.nodeid.partition("::")
        return Job(
            name=item.nodeid,
            folder=folder,
            world_size=wanted.size,
            entry=ENTRY,
            payload={
                "folder": str(folder),
                "tmp_path": str(tmp_path),
                "test": f"{item.path}::{name}",
                "path": sys.path,
                "directory": str(self._config.invocation_params.dir),
                "plugins": list(self._config.option.plugins),
                "size": wanted.size,
                "device": wanted.device,
                "backend": wanted.backend,
                "init": wanted.init,
            },
            env={"TORCH_FR_BUFFER_SIZE": FLIGHT_RECORDS, **wanted.env},
            deadline=wanted.deadline,
        )

    @functools.cached_property
    def _options(self) -> bytes:
        """What the command line and addopts of this session have set, each value for itself."""
        values = {name: value for name, value in vars(self._config.option).items() if name != "file_or_dir"}
        values |= {name: instead for name, instead in INSTEAD.items() if name in values}
        values["rootdir"] = str(self._config.rootpath)
        if self._config.inipath is not None:
            values["inifilename"] = str(self._config.inipath)
        values["pythonwarnings"] = [*(values.get("pythonwarnings") or ()), *NO_NEWS]
        out = {}
        for name, value in values.items():
            try:
                out[name] = pickle.dumps(value)
            except Exception:  # whatever a plugin keeps there: its default serves
                continue
        return pickle.dumps(out)

    def _pass_on(self, found: Told) -> None:
        """What rank 0 was warned of; and what ranks have printed, where this session shows what is printed."""
        for warning in found.warnings:
            kind = getattr(sys.modules.get(str(warning["module"])), str(warning["kind"]), pytest.PytestWarning)
            with suppress(Exception):  # filters that make errors of warnings have done so there
                warnings.warn_explicit(str(warning["text"]), kind, str(warning["filename"]), int(warning["lineno"]))
        if self._config.option.capture == "no":
            for title, text in found.sections:
                if title.startswith(PRINTED.partition("{")[0]):
                    sys.stdout.write(f"\n{title}:\n{text.rstrip()}{os.linesep}")
