"""On a rank: a pytest session of one test, whose report and output are left for the session that started it.

Fixtures and body are the rank's own, made there with the process group; conftest files, plugins, options and the
rewriting of asserts are those of the session that started it.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from _pytest.config import create_terminal_writer

import dist_checks.worker.entry  # noqa: F401  # what ranks import at first use: in a fork server it is paid for once
from dist_checks.probe.ledger import open_for_worker
from dist_checks.pytest_plugin.names import ON_RANK, OPTIONS, REPORT, STRICT
from dist_checks.worker import watching
from dist_checks.worker.mesh import INIT_METHOD, choose_device

DONE = "rank-{:05d}.done"
INTERVAL = 0.005  # seconds between two looks for the other ranks
SKIPPED_WAIT = 2.0  # seconds that a rank which skips waits for the others to skip, too


class EndedHere(BaseException):
    """The test is over on this rank, and not as it should be: the others are to be ended. Says what pytest says first.

    No fixture is torn down: a teardown that waits for the others would hang.
    """


class Report:
    """What this rank has to tell, written when it is over."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._rank = folder, rank
        self._log = folder / f"rank-{rank:05d}.log"
        self._start = 0
        self.told: dict[str, Any] = {"reports": [], "warnings": [], "skipped": ""}

    def begin(self) -> None:
        """What is printed from now on is of the test."""
        self._start = self._size()

    def write(self) -> None:
        self.told["printed"] = [self._start, self._size()]
        path = self._folder / REPORT.format(self._rank)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(self.told, default=repr), encoding="utf-8")
        part.rename(path)

    def _size(self) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        return self._log.stat().st_size if self._log.exists() else 0


class OnRank:
    """The plugin of the rank's session."""

    def __init__(self, config: pytest.Config, report: Report, tmp_path: Path) -> None:
        self._config, self._report, self._tmp_path = config, report, tmp_path

    @pytest.fixture
    def tmp_path(self) -> Path:
        """The same folder on all ranks."""
        return self._tmp_path

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """What an accelerator has still to compute belongs to the body: it may fail there."""
        result = yield
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        return result

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            raise RuntimeError(f"collecting {report.nodeid} on this rank: {report.longreprtext}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._report.told["reports"].append(hook.pytest_report_to_serializable(config=self._config, report=report))
        # What passes against xfail on this rank may fail, as it is to, on another.
        if (report.failed and not report.longreprtext.startswith(STRICT)) or (
            report.skipped and hasattr(report, "wasxfail")
        ):
            self._report.write()
            raise EndedHere(_crash(report))

    def pytest_warning_recorded(self, warning_message: Any, when: str, nodeid: str, location: Any) -> None:
        if when == "runtest":
            about = {name: getattr(warning_message, name) for name in ("filename", "lineno")}
            kind = warning_message.category
            told = {"text": str(warning_message.message), "module": kind.__module__, "kind": kind.__name__, **about}
            self._report.told["warnings"].append(told)

    @pytest.hookimpl(optionalhook=True, tryfirst=True)
    def pytest_timeout_set_timer(self) -> bool:
        """pytest-timeout counts in the session that started this one."""
        return True


def main(payload: Mapping[str, Any]) -> None:
    """On every rank: run the test of ``payload``; raises where it fails."""
    rank, folder = int(os.environ["RANK"]), Path(payload["folder"])
    sys.path[:] = payload["path"]
    os.chdir(payload["directory"])
    report = Report(folder, rank)
    if reason := _too_few(payload["device"], payload["size"]):
        report.told["skipped"] = reason
        report.write()
        return
    ledger = open_for_worker(folder, rank)
    watching.start(rank, ledger)
    _join(payload, rank)
    try:
        _run(payload, folder, report)
    finally:
        ledger.read()
    report.write()
    ledger.end()
    skipped = bool(report.told["reports"]) and report.told["reports"][-1]["outcome"] == "skipped"
    wait_for_the_others(folder, rank, payload["size"], SKIPPED_WAIT if skipped else None)


def wait_for_the_others(folder: Path, rank: int, size: int, longest: float | None) -> None:
    """A rank that leaves closes its connections, over which another may still wait for what it has sent."""
    (folder / DONE.format(rank)).touch()
    until = None if longest is None else time.monotonic() + longest
    while not all((folder / DONE.format(other)).exists() for other in range(size)):
        if until is not None and time.monotonic() > until:
            return
        time.sleep(INTERVAL)


def _too_few(device: str | None, size: int) -> str:
    """Why there are not enough accelerators; '' where there are, or none is wanted."""
    if device == "cpu" or not torch.accelerator.is_available():
        return ""
    there = torch.accelerator.device_count()
    return f"{size} ranks need {size} accelerators, this machine has {there}" if there < size else ""


def _join(payload: Mapping[str, Any], rank: int) -> None:
    device = choose_device(payload["device"])
    if device.type == "cpu":
        torch.set_num_threads(1)  # ranks that share a machine starve each other with more
    if payload["init"]:
        dist.init_process_group(
            backend=payload["backend"] or dist.get_default_backend_for_device(device),
            init_method=os.environ.get(INIT_METHOD, "env://"),
            rank=rank,
            world_size=payload["size"],
            device_id=None if device.type == "cpu" else device,
        )


def _run(payload: Mapping[str, Any], folder: Path, report: Report) -> None:
    options = {name: pickle.loads(value) for name, value in pickle.loads((folder / OPTIONS).read_bytes()).items()}
    plugins = [word for name in payload["plugins"] for word in ("-p", name)]
    config = pytest.Config.fromdictargs(options, [*plugins, payload["test"]])
    # What it would write goes to nobody, and it is here that ini options of it are known.
    config.pluginmanager.unregister(name="terminal")
    # pytest 8 asks the reporter, which is not here, how to colour what an assert compares.
    writer = create_terminal_writer(config, io.StringIO())
    config.get_terminal_writer = lambda: writer  # type: ignore[method-assign]  # in its place
    config.pluginmanager.register(OnRank(config, report, Path(payload["tmp_path"])), ON_RANK)
    config._do_configure()
    session = pytest.Session.from_config(config)
    config.hook.pytest_sessionstart(session=session)
    config.hook.pytest_collection(session=session)
    name = payload["test"].partition("::")[2]
    items = [item for item in session.items if item.nodeid.partition("::")[2] == name]
    if len(items) != 1:
        raise RuntimeError(f"{payload['test']} is not collected on this rank, as it was before")
    report.begin()
    items[0].ihook.pytest_runtest_protocol(item=items[0], nextitem=None)


def _crash(report: pytest.TestReport) -> str:
    """In a line: the launcher tells from it who has only missed a peer."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longreprtext).strip() or "failed"
