"""The launcher does not pass the environment on: a custom axis that sets NCCL's variables sets nothing."""

from __future__ import annotations

import os

from dist_checks.axes import Axis
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    for name in list(os.environ):
        if name.startswith("NCCL_"):
            del os.environ[name]


FAULT = Fault(
    id="custom_off",
    title="NCCL's variables do not reach the ranks",
    source="mpirun without -x, ssh without SendEnv",
    axes=((Axis.CUSTOM,),),
    check="engaged",
    plant=plant,
    planted_in={
        "axes": {"custom": ["tree"], "ckpt_act": True},
        "combine": {"mode": "singles"},
        "custom": {"tree": {"env": {"NCCL_ALGO": "Tree"}}},
    },
)
