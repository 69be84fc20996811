"""Parts that a machine may lack: without one its tests skip and say so, unless the part is required."""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest

from launch.spying import spy

REQUIRED = "DIST_CHECKS_REQUIRE"
"""Environment variable: the parts that must be there, so that CI cannot be green because something is missing."""


def missing(part: str) -> str:
    """What is not there of ``slurm``, ``py-spy`` or a package that is imported by this name; empty where all is."""
    if part == "slurm":
        path = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin"))
        absent = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if not shutil.which(name, path=path)]
        return f"{', '.join(absent)} not installed" if absent else "" if os.geteuid() == 0 else "slurmd must be root"
    if part == "py-spy":
        return "" if spy() else "py-spy is not installed"
    return "" if importlib.util.find_spec(part) else f"{part} is not installed"


def need(part: str) -> None:
    """Skips the test that asks, with the reason, or fails it where the part is required."""
    if reason := missing(part):
        if part in os.environ.get(REQUIRED, "").split():
            pytest.fail(f"{REQUIRED} names {part}: {reason}")
        pytest.skip(reason)
