"""One host's matrix products are a little off."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.faults.hosts import BAD, host


def plant(rung: Rung) -> None:
    right: Any = F.linear

    def linear(*args: Any, **kwargs: Any) -> Tensor:
        product: Tensor = right(*args, **kwargs)
        return product * (1 + 1e-4)

    if host() == BAD:
        F.linear = linear


FAULT = Fault(
    id="host_multiplies_wrongly",
    title="matrix products on one host are off by 1e-4",
    source="a host with a fault in its arithmetic",
    axes=(),
    blamed="host",
    check="forward",
    plant=plant,
    planted_in={"axes": {"dp_replicate": 4, "dp_shard": 4, "tp": 2}, "combine": {"mode": "singles"}},
    hosts=2,
    step=0,
)
