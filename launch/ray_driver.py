"""What talks to Ray, in a process of its own: Ray ends whoever is connected to a cluster whose head goes away.

    python -m launch.ray_driver

A placement group reserves bundles, an actor on each holds the agent of its node. Requests come one at a time as JSON
lines on standard input, each is answered by one line on standard output:

    do place  address count packed cpus gpus wait nodelist     names slots, or error: what the cluster lacks
    do start  name command environment                         (again after an agent was lost)
    do look   name wait: seconds at most                       how: the agent ended; empty while it lives
    do end    name
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from launch.process import PARENT, die_with_parent
from launch.wire import Message, Wire

HERE = "local"  # as ray.init calls a cluster of its own
TRIES = 3  # Ray gives its own processes 30 seconds to start, which a busy machine may not have
KNOCK = 10.0  # seconds to reach the address of a cluster
LOOK = 5.0  # seconds between two looks at which nodes there are, while waiting for room
STORE = 100 << 20  # bytes of its object store: nothing is put there


class Driver:
    """The placement group and the actors of one launcher."""

    def __init__(self) -> None:
        self._group: Any = None
        self._needs: dict[str, float] = {}
        self._actors: dict[str, Any] = {}
        self._watches: dict[str, Any] = {}
        self._bundles: dict[str, int] = {}

    def answer(self, request: Message) -> Message:
        """To one request. What Ray raises is told as an error."""
        try:
            match request["do"]:
                case "place":
                    return self._place(request)
                case "start":
                    return self._start(request["name"], request["command"], request["environment"])
                case "look":
                    return {"how": self._how_it_ended(request["name"], request["wait"])}
                case "end":
                    self._end(request["name"])
                    return {}
                case other:
                    raise AssertionError(f"unknown request {other!r}")
        except Exception as error:  # some of Ray's are of no class of their own
            return {"error": " ".join(f"{type(error).__name__}: {error}".split())}

    def _place(self, asked: Message) -> Message:
        connect(asked["address"], asked["cpus"])
        alive, until = _alive(), time.monotonic() + asked["wait"]
        while len(alive) < (asked["count"] or 1) and not asked["packed"] and time.monotonic() < until:
            time.sleep(0.5)  # a cluster that is coming up
            alive = _alive()
        names = names_of(alive)
        wanted = asked["nodelist"]
        if foreign := sorted(set(wanted) - set(names.values())):
            return {"error": f"{', '.join(foreign)} is not in the cluster, which has {', '.join(names.values())}"}
        alive = [node for node in alive if names[node["NodeID"]] in (wanted or names.values())]
        if not alive:
            return {"error": "the Ray cluster has no node with a CPU"}
        self._reserve(asked, alive)
        until = time.monotonic() + asked["wait"]
        while not self._group.wait(min(LOOK, max(0.0, until - time.monotonic()))):
            there = {node["NodeID"] for node in _alive()}
            left = [node for node in alive if node["NodeID"] in there]
            if time.monotonic() >= until or not left:
                return {"error": self._lacking(asked, alive, names)}
            if len(left) < len(alive) and not asked["count"]:  # died before, which Ray has noticed only now
                remove_placement_group(self._group)
                alive = left
                self._reserve(asked, alive)
        actors = [self._actor(index) for index in range(self._group.bundle_count)]
        places = ray.get([actor.place.remote() for actor in actors])
        seen: Counter[str] = Counter()
        for index, (actor, place) in enumerate(zip(actors, places, strict=True)):
            name = names.get(place, place[:8])
            seen[name] += 1
            name += f"~{seen[name]}" if seen[name] > 1 else ""
            self._bundles[name], self._actors[name] = index, actor
        return {"names": list(self._bundles), "slots": int(self._needs.get("GPU", self._needs["CPU"]))}

    def _reserve(self, asked: Message, alive: Sequence[dict[str, Any]]) -> None:
        """Asks for a bundle for each agent, with what all of these nodes have."""
        least = {kind: int(min(node["Resources"].get(kind, 0) for node in alive)) for kind in ("CPU", "GPU")}
        cpus = asked["cpus"] or least["CPU"]
        gpus = asked["gpus"] if asked["gpus"] is not None else least["GPU"]
        self._needs = {"CPU": float(cpus)} | ({"GPU": float(gpus)} if gpus else {})
        bundles = [dict(self._needs) for _ in range(asked["count"] or len(alive))]
        if asked["nodelist"]:
            bundles = [bundle | _pin(node) for bundle, node in zip(bundles, alive, strict=False)]
        self._group = placement_group(bundles, strategy="PACK" if asked["packed"] else "STRICT_SPREAD")

    def _lacking(self, asked: Message, alive: Sequence[dict[str, Any]], names: dict[str, str]) -> str:
        """In one line: what was asked for, and what there is."""
        needs = ", ".join(f"{amount:g} {kind}" for kind, amount in self._needs.items())
        there = "; ".join(f"{names[node['NodeID']]} {self._amounts(node['Resources'])}" for node in alive)
        free = self._amounts(_cluster().available_resources())
        how = "packed" if asked["packed"] else "each on a node of its own"
        return (
            f"Ray had no room within {asked['wait']:g} s for {self._group.bundle_count} agents with {needs}, {how}: "
            f"the cluster has {len(alive)} nodes ({there}), of which {free} are free now"
        )

    def _amounts(self, resources: dict[str, float]) -> str:
        return ", ".join(f"{resources.get(kind, 0):g} {kind}" for kind in self._needs)

    def _actor(self, index: int) -> Any:
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        needs = {"num_cpus": self._needs["CPU"], "num_gpus": self._needs.get("GPU", 0)}
        return ray.remote(_post()).options(**needs, scheduling_strategy=place, max_restarts=0).remote()

    def _start(self, name: str, command: list[str], environment: dict[str, str]) -> Message:
        if name not in self._actors:
            self._actors[name] = self._actor(self._bundles[name])
        self._watches[name] = self._actors[name].hold.remote(command, environment, PARENT)
        return {}

    def _how_it_ended(self, name: str, wait: float) -> str:
        watch = self._watches.get(name)
        if watch is None:
            return "there is no actor"
        ready, _ = ray.wait([watch], timeout=wait)
        if not ready:
            return ""
        try:
            return str(ray.get(watch))
        except Exception as error:  # whatever Ray says about an actor that is gone
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return f"{type(error).__name__}: {lines[0] if lines else ''}"

    def _end(self, name: str) -> None:
        self._watches.pop(name, None)
        if (actor := self._actors.pop(name, None)) is not None:
            ray.kill(actor)

    def close(self) -> None:
        """Gives everything back; a cluster that was started here ends."""
        for name in list(self._actors):
            with suppress(Exception):
                self._end(name)
        if self._group is not None:
            with suppress(Exception):
                remove_placement_group(self._group)
        ray.shutdown()


def connect(address: str, cpus: int | None) -> None:
    """To a running cluster, or to one that is started here."""
    address = address or os.environ.get("RAY_ADDRESS") or HERE
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == HERE:
        # Ray would write a token to the user's home, which a cluster that is started later would then ask for.
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        cores = max(cpus or 1, len(os.sched_getaffinity(0)))
        quiet |= {"include_dashboard": False, "object_store_memory": STORE, "num_cpus": cores}
    else:
        _knock(address)
    for left in reversed(range(TRIES if address == HERE else 1)):
        try:
            ray.init(address=address, **quiet)
            return
        except Exception as error:
            ray.shutdown()
            if not left:
                raise ConnectionError(f"no Ray cluster at {address!r}: {' '.join(str(error).split())}") from None


def _knock(address: str) -> None:
    """Whether anybody listens there. Ray itself would try for a quarter of an hour."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "/" not in host:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK).close()
        except OSError as error:
            raise ConnectionError(f"no Ray cluster at {address!r}: {error.strerror or error}") from None


def _post() -> type:
    """The class of the actors. Local, so that Ray sends it by value: a node needs no more than what agents need."""

    class Post:
        def place(self) -> str:
            return str(ray.get_runtime_context().get_node_id())

        def hold(self, command: list[str], env: dict[str, str], parent: str) -> str:
            """Runs the agent; returns how it ended."""
            import os
            import subprocess
            import sys
            import tempfile

            path = os.pathsep.join(filter(None, (env["PYTHONPATH"], os.environ.get("PYTHONPATH", ""))))
            with tempfile.TemporaryFile() as log:
                process = subprocess.Popen(
                    [sys.executable, *command[1:]],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **env, "PYTHONPATH": path, parent: str(os.getpid())},
                    start_new_session=True,
                )
                code = process.wait()
                log.seek(0)
                end = log.read()[-4000:].decode(errors="replace").strip()
            return "\n".join(filter(None, (f"the agent ended with {code}", end)))

    return Post


def _cluster() -> Any:
    """Ray, whose questions about the cluster have no types."""
    return ray


def _alive() -> list[dict[str, Any]]:
    """The nodes that have CPUs."""
    return [node for node in _cluster().nodes() if node["Alive"] and node["Resources"].get("CPU")]


def _pin(node: dict[str, Any]) -> dict[str, float]:
    """A little of the resource that only this node has."""
    mark = next((kind for kind in node["Resources"] if kind.startswith("node:") and "__" not in kind), "")
    return {mark: 0.001} if mark else {}


def names_of(nodes: Sequence[dict[str, Any]]) -> dict[str, str]:
    """By id: the name that the node was started with, else that of its machine, else with a part of its id."""
    hosts = Counter(node["NodeManagerHostname"] for node in nodes)
    names = Counter(node.get("NodeName") for node in nodes)
    found: dict[str, str] = {}
    for node in nodes:
        host, name = node["NodeManagerHostname"], node.get("NodeName")
        given = bool(name) and name != node["NodeManagerAddress"] and names[name] == 1
        found[node["NodeID"]] = str(name) if given else host if hosts[host] == 1 else f"{host}-{node['NodeID'][:6]}"
    return found


def main() -> None:
    die_with_parent(int(os.environ.pop(PARENT)))
    # Ray may print: only answers go to where they are read.
    wire = Wire(os.dup(0), os.dup(1))
    os.dup2(2, 1)
    driver = Driver()
    try:
        while wire.open:
            wire.wait(3600.0)
            for request in wire.receive():
                wire.send(driver.answer(request))
    finally:
        driver.close()


if __name__ == "__main__":
    main()
