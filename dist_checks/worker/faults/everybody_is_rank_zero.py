"""O06: the launcher tells every process that it is rank 0 of a world of one."""

from __future__ import annotations

import os

from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    os.environ["RANK"], os.environ["WORLD_SIZE"] = "0", "1"


FAULT = Fault(
    id="O06",
    title="every process believes that it is rank 0",
    source="NVIDIA-NeMo/Speech#8333",
    axes=(),
    blamed="launcher",
    check="launch",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 3, "tp": 2}},
)
