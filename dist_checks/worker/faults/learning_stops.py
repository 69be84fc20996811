"""Late in a run the optimizer takes no step any more: no step that is judged alone looks wrong."""

from __future__ import annotations

from typing import Any

import torch

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault

FROM = 30


def plant(rung: Rung) -> None:
    real = torch.optim.AdamW.step
    calls = 0

    def step(self: torch.optim.AdamW, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return None if calls > FROM else real(self, *args, **kwargs)

    if rung.setting.degree(Axis.ACCUM) > 1:
        torch.optim.AdamW.step = step  # type: ignore[assignment]  # that is what planting means


FAULT = Fault(
    id="learning_stops",
    title="accumulation that takes no step any more, long after single steps are judged",
    source="a model of what shows in the curve alone, after the steps that are judged one by one",
    axes=((Axis.ACCUM,),),
    check="curve",
    plant=plant,
    planted_in={
        "axes": {"accum": 2},
        "exact": False,
        "steps": 100,
        "seeds": [0, 1, 2],
        "record_every": 50,
        "train": {"learning_rate": 1e-3, "batch": 13},
        "options": {"samples": 1300},
        "combine": {"mode": "singles"},
    },
    step=50,
)
