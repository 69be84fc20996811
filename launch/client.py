"""An agent in a process on this machine, as its launcher sees it."""

from __future__ import annotations

import os
import shutil
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from launch import logs
from launch.base import AgentKilled, LaunchError
from launch.process import PARENT, alive, name_of
from launch.wire import Message, Wire

READY = 180.0  # seconds that the preload modules may take


class LocalAgent:
    """Started by the constructor, at work once `ready` has returned."""

    def __init__(self, preload: Sequence[str]) -> None:
        self.host = socket.gethostname()
        self.notes: tuple[str, ...] = ()
        self.pid = 0
        self._scratch: Path | None = None  # the agent's own: it may not live to remove it
        self._preload = tuple(preload)
        self._ranks: set[int] = set()  # process ids
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # has no name, so it cannot stay behind
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "launch.agent", *(f"--preload={module}" for module in preload)],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._log,
                env={**os.environ, "PYTHONPATH": python_path(), PARENT: str(os.getpid())},
                start_new_session=True,  # Ctrl-C is for the launcher, which then ends the agent in order
            )
        self.pid = self._process.pid
        self.wire = Wire(os.dup(ours.fileno()), ours.detach())

    @property
    def lives(self) -> bool:
        return self.wire.open and self._process.poll() is None

    def receive(self) -> list[Message]:
        """What the agent has to say by now."""
        reports = self.wire.receive()
        for report in reports:
            if report["said"] == "started":
                self._ranks.add(report["pid"])
            elif report["said"] == "ended":
                self._ranks.discard(report["pid"])
        return reports

    def ready(self) -> None:
        """Waits until it can start ranks; raises LaunchError if that is not going to happen, AgentKilled if it was."""
        until = time.monotonic() + READY
        while time.monotonic() < until:
            self.wire.wait(1.0)
            for report in self.receive():
                if report["said"] == "broken":
                    raise LaunchError(f"cannot preload {', '.join(self._preload)}:\n{report['error']}")
                assert report["said"] == "ready", report
                self.host, self.notes = report["host"], tuple(report["notes"])
                self._scratch = Path(report["scratch"])
                return
            if not self.wire.open:
                how = self.how_it_ended()
                killed = (self._process.returncode or 0) < 0
                raise (AgentKilled if killed else LaunchError)(f"the agent ended before it was ready: {how}")
        raise LaunchError(f"the agent was not ready after {READY:g} s, preloading {', '.join(self._preload)}")

    def how_it_ended(self) -> str:
        """With the end of its log, where preloaded modules may have written."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.returncode
        told = "it does not answer" if code is None else f"exit code {code}" if code >= 0 else name_of(-code)
        return "\n".join(filter(None, (told, logs.tail(Path(f"/proc/self/fd/{self._log.fileno()}")))))

    def close(self, patience: float) -> list[Message]:
        """Ends its ranks, then the agent, after at most some seconds; returns its last reports."""
        reports: list[Message] = []
        if self._scratch is not None:
            self.wire.send({"do": "close"})
        else:  # it is still importing: it has no ranks, and hears nothing
            patience = 0.0
        until = time.monotonic() + patience
        while self.wire.open and time.monotonic() < until:
            self.wire.wait(until - time.monotonic())
            reports += self.receive()
            self.wire.flush()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, until - time.monotonic()))
        self.kill()
        return reports

    def kill(self) -> None:
        """SIGKILL to the agent, and so to its ranks. Waits a moment for them to be gone."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        self.wire.close()
        until = time.monotonic() + 1.0
        for rank in self._ranks:
            # The kernel kills a rank with its agent; what the rank has started is in its process group.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(rank, signal.SIGKILL)
            while alive(rank) and time.monotonic() < until:
                time.sleep(0.005)
        self._log.close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)


def python_path() -> str:
    """PYTHONPATH by which a new Python finds what this one finds: scripts and pytest add folders to their own path."""
    own = {*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()}
    known = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    added = [os.path.abspath(entry) for entry in (*sys.path, str(Path(__file__).parent.parent)) if os.path.isdir(entry)]
    new = [folder for folder in added if folder not in own and os.path.basename(folder) != "lib-dynload"]
    return os.pathsep.join(dict.fromkeys(known + new))
