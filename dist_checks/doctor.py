"""Whether this machine can run a ladder: asked before a night is spent on it."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass
from importlib import metadata

from dist_checks.jobs import DESCRIBE
from dist_checks.launching import PRELOAD
from launch import scratch
from launch.base import Exit, Job, State
from launch.local import LocalLauncher

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    what: str
    ok: bool
    seen: str


def examine() -> list[Check]:
    """Run everything; nothing is left behind."""
    checks = [_torch(), _memory(), _disk()]
    if not checks[0].ok:
        return checks
    started = time.monotonic()
    with scratch.held("dist-checks-") as folder, LocalLauncher(preload=PRELOAD) as launcher:
        payload = {"folder": str(folder), "recipe": "gpt", "options": {}, "train": {}}
        jobs = [
            Job(name="describe", folder=folder, world_size=1, entry=DESCRIBE, payload=payload),
            Job(name="warm", folder=folder / "warm", world_size=2, entry=KNOWN_ANSWER, deadline=60),
            Job(name="cold", folder=folder / "cold", world_size=2, entry=KNOWN_ANSWER, deadline=60, cold=True),
        ]
        exits = {exit.job: exit for exit in launcher.run(jobs)}
        ready = time.monotonic() - started
        recipe = folder / "recipe.json"
        accelerators = json.loads(recipe.read_text()).get("accelerators", 0) if recipe.is_file() else 0
    checks += [
        Check(
            what="devices",
            ok=exits["describe"].state is State.DONE,
            seen=f"{accelerators} accelerators" if accelerators else f"no accelerator, {os.cpu_count()} cores",
        ),
        _collective("warm start", exits["warm"]),
        _collective("cold start", exits["cold"]),
        Check(what="all of these", ok=True, seen=f"{ready:.1f} s"),
    ]
    return checks


KNOWN_ANSWER = "dist_checks.worker.known_answer:main"
"""An all-reduce whose result every rank knows beforehand; a rank that sees another one raises."""


def _collective(what: str, exit: Exit) -> Check:
    good = exit.state is State.DONE
    lines = exit.error.strip().splitlines() or [str(exit.state)]
    return Check(what=what, ok=good, seen=f"2 ranks agree, {exit.seconds:.2f} s" if good else lines[-1])


def _torch() -> Check:
    try:
        return Check(what="torch", ok=True, seen=metadata.version("torch"))
    except metadata.PackageNotFoundError:
        return Check(what="torch", ok=False, seen="not installed: stored runs can be judged, none can be made")


def _memory() -> Check:
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB
    return Check(what="memory", ok=free > 2, seen=f"{free:.1f} GiB free, 2 needed for 8 ranks of the built-in recipe")


def _disk() -> Check:
    free = shutil.disk_usage(".").free / GIB
    return Check(what="disk", ok=free > 1, seen=f"{free:.1f} GiB free here, 1 needed")
