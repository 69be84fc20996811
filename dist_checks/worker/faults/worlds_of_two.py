"""O05: a library does not see that the launcher manages its tasks, and makes worlds of its own, of two ranks each."""

from __future__ import annotations

import os

from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    if rung.layout.world_size > 2:
        os.environ["RANK"] = str(int(os.environ["RANK"]) % 2)
        os.environ["WORLD_SIZE"] = "2"


FAULT = Fault(
    id="O05",
    title="several worlds of two ranks instead of one world",
    source="Lightning-AI/pytorch-lightning#13605",
    axes=(),
    blamed="launcher",
    check="launch",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 4, "tp": 2}},
)
