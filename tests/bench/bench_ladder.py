"""A whole ladder with ranks forked from a warm server against torchrun for each rung, one after another.

    python tests/bench/bench_ladder.py [preset]

Both run the same rungs in one run, on one machine; what counts is the ratio. The server's start is part of its time.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from dist_checks import session
from dist_checks.jobs import jobs
from dist_checks.launching import PRELOAD, slots_of_cores
from dist_checks.matrix import preset
from dist_checks.rung import Role
from launch import Job, LocalLauncher, State


def seconds(jobs: list[Job], slots: int, preload: tuple[str, ...]) -> float:
    began = time.perf_counter()
    with LocalLauncher(slots=slots, preload=preload) as launcher:
        for exit in launcher.run(jobs):
            assert exit.state is State.DONE, exit.error
    return time.perf_counter() - began


def main() -> None:
    matrix = preset(sys.argv[1] if len(sys.argv) > 1 else "quick")
    plan = session.plan(matrix)
    rungs = tuple(rung for rung in plan.rungs if rung.role is not Role.TWIN and not rung.restarts)
    plan = replace(plan, rungs=rungs)

    def started(cold: bool) -> Iterator[Job]:
        for (job,) in jobs(matrix, plan.rungs, Path(folder) / f"cold-{cold}"):
            yield replace(job, cold=cold)

    with tempfile.TemporaryDirectory() as folder:
        warm = seconds(list(started(cold=False)), slots_of_cores(), PRELOAD)
        # One rung at a time: what a script of torchrun calls does.
        cold = seconds(list(started(cold=True)), 1, ())
    print(f"{len(rungs)} rungs, {plan.processes} processes")
    print(f"torchrun {cold:.0f} s, warm {warm:.0f} s, ratio {cold / warm:.1f}")


if __name__ == "__main__":
    main()
