"""Runs jobs on the nodes of a Ray cluster: a placement group reserves them, an actor on each holds the agent.

Ray places and counts devices; ranks are processes of the agents, as everywhere. Without a cluster, one is started here
for as long as the launcher is open.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from launch.base import LaunchError
from launch.cluster import ClusterLauncher
from launch.process import PARENT

HERE = "local"  # as ray.init calls a cluster of its own
STORE = 100 << 20  # bytes of its object store: nothing is put there
SEEN = 3.0  # seconds after its agent's end until Ray has noticed what became of the actor


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
        self._address, self._count, self._packed = address, nodes, packed
        self._cpus, self._gpus, self._room = cpus, gpus, wait
        self._nodelist = tuple(nodelist)
        self._mine = False
        self._group: Any = None
        self._actors: dict[str, Any] = {}
        self._watches: dict[str, Any] = {}
        self._bundles: dict[str, int] = {}

    def _start_agents(self) -> Collection[str]:
        self._connect()
        alive = [node for node in _cluster().nodes() if node["Alive"] and node["Resources"].get("CPU")]
        names = names_of(alive)
        if foreign := sorted(set(self._nodelist) - set(names.values())):
            raise LaunchError(f"{', '.join(foreign)} is not in the cluster, which has {', '.join(names.values())}")
        alive = [node for node in alive if names[node["NodeID"]] in (self._nodelist or names.values())]
        if not alive:
            raise LaunchError("the Ray cluster has no node with a CPU")
        count = self._count or len(alive)
        cpus = self._cpus or int(min(node["Resources"]["CPU"] for node in alive))
        gpus = self._gpus if self._gpus is not None else int(min(node["Resources"].get("GPU", 0) for node in alive))
        self._needs = {"CPU": float(cpus)} | ({"GPU": float(gpus)} if gpus else {})
        bundles = [dict(self._needs) for _ in range(count)]
        if self._nodelist:
            bundles = [bundle | _pin(node) for bundle, node in zip(bundles, alive, strict=False)]
        self._group = placement_group(bundles, strategy="PACK" if self._packed else "STRICT_SPREAD")
        if not self._group.wait(self._room):
            raise LaunchError(self._lacking(count, alive, names))
        self._slots = self._slots or gpus or cpus
        refs = [self._actor(index) for index in range(count)]
        places = ray.get([actor.place.remote() for actor in refs])
        seen: Counter[str] = Counter()
        for index, (actor, place) in enumerate(zip(refs, places, strict=True)):
            name = names.get(place, place[:8])
            seen[name] += 1
            name += f"~{seen[name]}" if seen[name] > 1 else ""
            self._bundles[name] = index
            self._start_on(name, actor)
        return tuple(self._actors)

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        address = self._address or os.environ.get("RAY_ADDRESS") or HERE
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if address == HERE:
            # Ray would write a token to the user's home, which a cluster that is started later would then ask for.
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")
            os.environ.setdefault("RAY_raylet_start_wait_time_s", "180")  # busy machines are slow
            cores = max(self._cpus or 1, len(os.sched_getaffinity(0)))
            quiet |= {"include_dashboard": False, "object_store_memory": STORE, "num_cpus": cores}
        try:
            ray.init(address=address, **quiet)
        except Exception as error:  # some are of no class of their own
            raise LaunchError(f"no Ray cluster at {address!r}: {' '.join(str(error).split())}") from None
        self._mine = True

    def _lacking(self, count: int, alive: Sequence[dict[str, Any]], names: dict[str, str]) -> str:
        """In one line: what was asked for, and what there is."""
        asked = ", ".join(f"{amount:g} {kind}" for kind, amount in self._needs.items())
        there = "; ".join(f"{names[node['NodeID']]} {self._amounts(node['Resources'])}" for node in alive)
        free = self._amounts(_cluster().available_resources())
        how = "packed" if self._packed else "each on a node of its own"
        return (
            f"Ray had no room within {self._room:g} s for {count} agents with {asked}, {how}: "
            f"the cluster has {len(alive)} nodes ({there}), of which {free} are free now"
        )

    def _amounts(self, resources: dict[str, float]) -> str:
        return ", ".join(f"{resources.get(kind, 0):g} {kind}" for kind in self._needs)

    def _actor(self, index: int) -> Any:
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
        needs = {"num_cpus": self._needs["CPU"], "num_gpus": self._needs.get("GPU", 0)}
        return ray.remote(_post()).options(**needs, scheduling_strategy=place, max_restarts=0).remote()

    def _start_on(self, name: str, actor: Any) -> None:
        self._actors[name] = actor
        self._watches[name] = actor.hold.remote(self._command(name, "python"), self._environment(), PARENT)

    def _replace_agent(self, name: str) -> bool:
        if name not in self._bundles:
            return False
        self._start_on(name, self._actor(self._bundles[name]))
        return True

    def _how_it_ended(self, name: str) -> str:
        watch = self._watches.get(name)
        if watch is None:
            return "there is no actor"
        ready, _ = ray.wait([watch], timeout=SEEN if name in self._nodes else 0.0)
        if not ready:
            return ""
        try:
            return str(ray.get(watch))
        except Exception as error:  # whatever Ray says about an actor that is gone
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return f"{type(error).__name__}: {lines[0] if lines else ''}"

    def _end_agent(self, name: str) -> None:
        self._watches.pop(name, None)
        if (actor := self._actors.pop(name, None)) is not None:
            with suppress(Exception):
                ray.kill(actor)

    def _stop(self) -> None:
        for name in list(self._actors):
            self._end_agent(name)
        if self._group is not None:
            with suppress(Exception):
                remove_placement_group(self._group)
            self._group = None
        if self._mine:
            ray.shutdown()
            self._mine = False


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
