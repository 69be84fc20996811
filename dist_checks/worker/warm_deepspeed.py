"""Imported by the fork server of a ladder with zero 1 to 3: what DeepSpeed takes seconds to import at first use."""

from __future__ import annotations

import contextlib
import importlib

MODULES = (
    "deepspeed",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.runtime.zero.muon.muon_optimizer",
)

with contextlib.suppress(ImportError):  # a plan that needs it says so
    for name in MODULES:
        importlib.import_module(name)
