"""One matrix on each launcher, from the command to the verdict, against starting torchrun for each rung.

    python tests/bench/bench_launchers.py [matrix.toml]

As root, with Slurm and Ray installed. All in one run, on one machine; what counts are the ratios. Slurm and the Ray of
three nodes are up before; embedded, Ray's start is part of its time.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import raying
import ways
from clusters import MATRIX

from dist_checks import session
from dist_checks.jobs import jobs
from dist_checks.matrix import load
from launch import LocalLauncher, State


def torchrun(matrix: Path, folder: Path) -> float:
    """Seconds for all rungs, one after the other: what a script of torchrun calls does."""
    loaded = load(matrix)
    plan = session.plan(loaded)
    began = time.perf_counter()
    with LocalLauncher(slots=1) as launcher:
        cold = [replace(job, cold=True) for phases in jobs(loaded, plan.rungs, folder) for job in phases]
        for exit in launcher.run(cold):
            assert exit.state is State.DONE, exit.error
    return time.perf_counter() - began


def main() -> None:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        given = Path(sys.argv[1] if len(sys.argv) > 1 else MATRIX).read_text()
        matrix = folder / "matrix.toml"
        matrix.write_text(given.replace("[launch]\n", "[launch]\ncold_twin = false\n"))
        base = torchrun(matrix, folder / "torchrun")
        print(f"torchrun for each rung  {base:5.0f} s", flush=True)

        def measure(name: str, way: Callable[..., int]) -> None:
            began = time.perf_counter()
            assert way(folder / name, (), matrix) == 0, name
            seconds = time.perf_counter() - began
            print(f"{name:23} {seconds:5.0f} s, {base / seconds:.1f} times faster", flush=True)

        measure("local", ways.local)
        with ways.slurm():
            measure("slurm, submitted", ways.outside)
            measure("slurm, inside", ways.inside)
        measure("ray, embedded", ways.embedded)
        with raying.cluster(3) as made:
            measure("ray, three nodes", partial(ways.clustered, made))
            measure("ray, as a job", partial(ways.as_job, made))


if __name__ == "__main__":
    main()
