"""The compiler fails, errors are suppressed, and every block runs as eager code."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.axes import compile as compiling
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def fails(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        raise RuntimeError("no kernel could be built")

    def compiled(block: nn.Module) -> Any:
        torch._dynamo.config.suppress_errors = True
        return torch.compile(block.forward, backend=fails)

    compiling.compiled = compiled


FAULT = Fault(
    id="compile_off",
    title="compilation fails and falls back to eager code without an error",
    source="torch._dynamo.config.suppress_errors",
    axes=((Axis.COMPILE,),),
    check="engaged",
    plant=plant,
    planted_in={
        "axes": {"compile": True, "accum": 5},
        "steps": 1,
        "options": {"layers": 1},
        "combine": {"mode": "singles"},
    },
)
