"""A Ray cluster of several nodes on this machine, small and short-lived."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from clusters import environment, run, wait_until

from launch.process import free_port

RAY = [str(Path(sys.executable).with_name("ray"))]
QUIET = ("--disable-usage-stats", "--object-store-memory=100000000", "--num-cpus=2", "--num-gpus=0", "--block")


@dataclass
class Cluster:
    """The addresses of a cluster, and the processes that hold its nodes, by name."""

    address: str
    dashboard: str
    held: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def add(self, name: str, *words: str) -> None:
        command = [*RAY, "start", f"--node-name={name}", *QUIET, *words]
        self.held[name] = subprocess.Popen(
            command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )

    def bring(self, size: int, name: str, *words: str) -> None:
        """Adds a node, which makes so many of them. Ray gives itself 30 seconds: where they were not enough, again."""
        self.add(name, *words)

        def there() -> bool:
            if self.held[name].poll() is not None:
                self.add(name, *words)
            return self.size() >= size

        wait_until(there)

    def size(self) -> int:
        code = f"import ray; ray.init({self.address!r}, log_to_driver=False); print(len(ray.nodes()))"
        try:
            return int(run(sys.executable, "-c", code).splitlines()[-1])
        except (AssertionError, ValueError, subprocess.TimeoutExpired):
            return 0

    def processes(self, name: str = "") -> list[psutil.Process]:
        """Of a node, or of all."""
        found: list[psutil.Process] = []
        for held in [self.held[name]] if name else self.held.values():
            try:
                root = psutil.Process(held.pid)
                found += [root, *root.children(recursive=True)]
            except psutil.NoSuchProcess:
                continue
        return found

    def raylet(self, name: str) -> psutil.Process:
        [found] = [process for process in self.processes(name) if process.name() == "raylet"]
        return found


@contextmanager
def cluster(nodes: int) -> Iterator[Cluster]:
    """Nodes r1, r2, ... with two CPUs each; r1 has the head and the dashboard, which takes jobs."""
    os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "180"}
    port, web = free_port(), free_port()
    while 10002 <= port <= 19999:
        port = free_port()
    made = Cluster(address=f"127.0.0.1:{port}", dashboard=f"http://127.0.0.1:{web}")
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # paths of its sockets have to be short
        try:
            head = ("--head", f"--port={port}", "--node-ip-address=127.0.0.1", f"--dashboard-port={web}")
            made.bring(1, "r1", *head, f"--temp-dir={folder}", "--include-dashboard=true")
            for index in range(2, nodes + 1):
                # One after the other: two that choose their ports at a time may choose the same.
                made.bring(index, f"r{index}", f"--address={made.address}")
            yield made
        finally:
            everything = made.processes()
            for held in made.held.values():
                held.send_signal(signal.SIGTERM)
            psutil.wait_procs(everything, timeout=15)
            for process in everything:
                try:
                    process.kill()
                except psutil.NoSuchProcess:
                    continue
            for held in made.held.values():
                held.wait()
