"""Runs jobs on the nodes of a Ray cluster: Ray reserves them and places the agents, one on each.

Ray places and counts devices; ranks are processes of the agents, as everywhere. Without a cluster, one is started here
for as long as the launcher is open.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

from launch import logs
from launch.base import LaunchError
from launch.client import python_path
from launch.cluster import ClusterLauncher
from launch.process import PARENT, end_group, name_of
from launch.wire import Message, Wire

SEEN = 3.0  # seconds after its agent's end until Ray has noticed what became of the actor
STARTING = 240.0  # seconds until Ray is there: busy machines are slow
ANSWER = 20.0  # seconds that Ray may take for an answer; where its head is gone it gives none
PATIENCE = 30.0  # seconds to give everything back


class RayLauncher(ClusterLauncher):
    """To be used where ``ray.init`` works: in a Ray job, beside a cluster, or on a machine that has none."""

    def __init__(
        self,
        *,
        slots: int | None = None,
        most: int | None = None,
        preload: Sequence[str] = (),
        nodelist: Sequence[str] = (),
        address: str = "",
        nodes: int | None = None,
        packed: bool = False,
        cpus: int | None = None,
        gpus: int | None = None,
        wait: float = 300.0,
    ) -> None:
        """`nodes`: how many agents, by default one on each node that has CPUs, each with the CPUs and GPUs that all of
        them have; `packed`: on as few nodes as possible. `wait`: seconds until the cluster has to have room."""
        super().__init__(slots=slots, most=most, preload=preload)
        asked = {"address": address, "count": nodes, "packed": packed, "cpus": cpus, "gpus": gpus, "wait": wait}
        self._asked: Message = {"do": "place", "nodelist": list(nodelist), **asked}
        self._driver: _Driver | None = None

    def _start_agents(self) -> Collection[str]:
        self._driver = _Driver()
        placed = self._driver.ask(self._asked, STARTING + 2 * self._asked["wait"])
        if "error" in placed:
            raise LaunchError(str(placed["error"]).removeprefix("ConnectionError: "))
        self._slots = self._slots or placed["slots"]
        for name in placed["names"]:
            self._replace_agent(name)
        return tuple(placed["names"])

    def _replace_agent(self, name: str) -> bool:
        if self._driver is None or self._driver.gone:
            return False
        command, environment = self._command(name, "python"), self._environment()
        asked = {"do": "start", "name": name, "command": command, "environment": environment}
        return "error" not in self._driver.ask(asked, ANSWER)

    def _how_it_ended(self, name: str) -> str:
        if self._driver is None:
            return "there is no actor"
        if self._driver.gone:
            return self._driver.gone
        node = self._nodes.get(name)
        wait = SEEN if node is not None and node.ready else 0.0  # only one that was there can have been lost just now
        told = self._driver.ask({"do": "look", "name": name, "wait": wait}, wait + ANSWER)
        return str(told.get("how", told.get("error", "")))

    def _end_agent(self, name: str) -> None:
        if self._driver is not None and not self._driver.gone:
            self._driver.ask({"do": "end", "name": name}, ANSWER)

    def _stop(self) -> None:
        if self._driver is not None:
            self._driver.close()
            self._driver = None


class _Driver:
    """The process that is connected to Ray, see :mod:`launch.ray_driver`."""

    def __init__(self) -> None:
        self.gone = ""  # why it answers no more
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # has no name, so it cannot stay behind
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "launch.ray_driver"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._log,
                env={**os.environ, "PYTHONPATH": python_path(), PARENT: str(os.getpid()), **_known()},
                start_new_session=True,  # Ctrl-C is for the launcher, which then gives everything back in order
            )
        self._wire = Wire(os.dup(ours.fileno()), ours.detach())

    def ask(self, request: Message, patience: float) -> Message:
        """Its answer; one with an error where there is none."""
        until = time.monotonic() + patience
        self._wire.send(request)
        while not self.gone and self._wire.open and time.monotonic() < until:
            self._wire.wait(until - time.monotonic())
            self._wire.flush()
            if answers := self._wire.receive():
                return answers[0]
        if not self.gone:
            self.gone = f"Ray {self._how() or f'has not answered for {patience:g} s'}"
            end_group(self._process.pid)
        return {"error": self.gone}

    def _how(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        code = self._process.returncode
        if code is None:
            return ""
        how = f"has ended its driver with {name_of(-code) if code < 0 else f'exit code {code}'}"
        end = logs.tail(Path(f"/proc/self/fd/{self._log.fileno()}"), lines=3)
        return "\n".join(filter(None, (how, end)))

    def close(self) -> None:
        self._wire.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)
        end_group(self._process.pid)
        self._process.wait()
        self._log.close()


def _known() -> dict[str, str]:
    """Of a caller that is connected to Ray by itself: the same cluster."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return {}
    return {"RAY_ADDRESS": str(ray.get_runtime_context().gcs_address)}
