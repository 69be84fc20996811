"""From a matrix to the launcher that it names."""

from __future__ import annotations

import math
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dist_checks.axes import ZERO_STAGES, Axis
from dist_checks.matrix import Matrix
from launch import slurm
from launch.base import Launcher
from launch.cluster import ClusterLauncher
from launch.local import LocalLauncher

PRELOAD = ("dist_checks.worker.entry",)
PRELOAD_DEEPSPEED = "dist_checks.worker.warm_deepspeed"
"""Besides those, where zero 1 to 3 are on the ladder: every rank of them would take seconds."""
PRELOAD_TRANSFORMERS = "dist_checks.worker.warm_transformers"
"""Likewise, where the recipe huggingface is trained."""
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
"""Rungs that run side by side see different devices."""
RANKS_PER_CORE = 2
"""Where ranks share cores: they wait for one another, and another rung uses the time (measured: 15 % of a ladder)."""
CPU_PROCESSES = 8
"""Largest world where there are no accelerators: processes that share the cores."""


def submits(matrix: Matrix) -> bool:
    """Whether this process is outside of the cluster: it hands the run over instead of running it."""
    return matrix.launch.launcher == "slurm" and not slurm.inside()


def slots_of_cores() -> int:
    """Ranks at a time where they share the cores of this machine."""
    return RANKS_PER_CORE * len(os.sched_getaffinity(0))


def open_launcher(matrix: Matrix, accelerators: int | None = None) -> Launcher:
    """``accelerators`` of a node, as a first process has found them; None as long as nobody knows.

    Starts nothing yet. Raises ValueError where the matrix asks for more than there is.
    """
    launch = matrix.launch
    if launch.launcher == "local" or submits(matrix):
        if accelerators:
            return LocalLauncher(slots=launch.slots or accelerators, preload=preload(matrix), devices=VISIBLE_DEVICES)
        slots = launch.slots or slots_of_cores()
        return LocalLauncher(slots=slots, preload=preload(matrix))
    most = launch.ranks_per_node
    shared: dict[str, Any] = {
        "slots": launch.slots,
        "most": most,
        "preload": preload(matrix),
        "nodelist": launch.nodelist,
    }
    if launch.launcher == "slurm":
        return slurm.SlurmLauncher(**shared, options=launch.slurm.srun)
    from launch.ray import RayLauncher

    ray = launch.ray
    launcher: Launcher = RayLauncher(
        **shared,
        address=ray.address,
        nodes=ray.nodes,
        packed=ray.strategy == "packed",
        cpus=ray.cpus_per_node,
        gpus=ray.gpus_per_node,
        wait=ray.wait,
    )
    return launcher


def preload(matrix: Matrix) -> tuple[str, ...]:
    """Modules that ranks of this matrix are going to need."""
    found = set()
    for ladder in matrix.ladders.values():
        included = (setting.get(Axis.ZERO) for setting in ladder.included)
        if {*ladder.axes.get(Axis.ZERO, ()), *included} & set(ZERO_STAGES):
            found.add(PRELOAD_DEEPSPEED)
        if ladder.recipe == "huggingface":
            found.add(PRELOAD_TRANSFORMERS)
    return (*PRELOAD, *sorted(found))


def largest_world(matrix: Matrix, launcher: Launcher, accelerators: int) -> int:
    """Ranks that a rung may have."""
    if matrix.launch.devices:
        return matrix.launch.devices
    if submits(matrix) and (each := matrix.launch.ranks_per_node or gpus(matrix)):
        nodes = matrix.launch.slurm.nodes
        return nodes * each if nodes and gpus(matrix) else max(CPU_PROCESSES, each)
    if isinstance(launcher, ClusterLauncher) and accelerators:
        return launcher.devices or accelerators * len(launcher.nodes)
    return accelerators or CPU_PROCESSES


def gpus(matrix: Matrix) -> int:
    """Of each node that is asked for: ``gpu:8``, ``gpu:a100:8``; 0 for none."""
    asked = re.search(r"\bgpu(?::[a-z]\w*)?(?::(\d+))?(?:\b|$)", matrix.launch.slurm.gres)
    return int(asked[1] or 1) if asked else 0


def nodes_needed(matrix: Matrix, largest: int) -> tuple[int, int]:
    """Nodes, and ranks on each, for a rung of ``largest`` ranks, where the matrix does not say."""
    launch, ray = matrix.launch, matrix.launch.ray
    on_ray = launch.launcher == "ray"
    room = (ray.gpus_per_node or ray.cpus_per_node) if on_ray else gpus(matrix)
    each = launch.ranks_per_node or room or largest
    return (ray.nodes if on_ray else launch.slurm.nodes) or math.ceil(largest / each), each


@contextmanager
def terminated_is_interrupted() -> Iterator[None]:
    """Schedulers end a job by SIGTERM, some time before SIGKILL: enough to judge what had finished."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
