"""How a fault of the catalogue is planted in the ladder that it names for itself."""

from __future__ import annotations

from typing import Any

from dist_checks.worker.faults.base import Fault
from launch.base import Job

SMALL = {"layers": 2, "width": 16, "samples": 150}


def matrix(fault: Fault) -> dict[str, Any]:
    """What the fixture ``ladder`` takes besides the axes."""
    assert fault.planted_in is not None
    given = {key: value for key, value in fault.planted_in.items() if key != "axes"}
    small = SMALL if given.get("recipe", "gpt") in ("gpt", "moe") else {}
    return {**given, "options": {**small, **given.get("options", {})}}


def axes(fault: Fault) -> dict[str, Any]:
    assert fault.planted_in is not None
    return dict(fault.planted_in["axes"])


def expected(fault: Fault) -> list[list[str]]:
    """The sets that must be named, of those whose axes are on the ladder."""
    on = {axis for axis, _ in axes(fault).items()}
    return sorted(sorted(axis.value for axis in each) for each in fault.axes if on >= {axis.value for axis in each})


def two_to_a_host(job: Job) -> list[str]:
    """Ranks 0 and 1 on n0, 2 and 3 on n1."""
    return [f"n{rank // 2}" for rank in range(job.world_size)]
