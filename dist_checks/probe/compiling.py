"""What torch.compile did: which modules are compiled, how many frames became graphs, how many fell back."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from torch import nn

Counts = dict[str, float]

PARTS = ("_compile.compile_inner", "compile_fx.<locals>.bw_compiler")
"""What torch times of compiling: forward, and backward, which it leaves until it is needed."""


def is_compiled(module: nn.Module) -> bool:
    """By ``torch.compile(module)``, ``module.compile()`` or ``torch.compile(module.forward)``."""
    return (
        hasattr(module, "_orig_mod")
        or getattr(module, "_compiled_call_impl", None) is not None
        or hasattr(module.forward, "_torchdynamo_orig_callable")
    )


def inside_compiled(model: nn.Module) -> set[nn.Module]:
    """Modules that a graph swallows: a hook there would be compiled too, or break the graph. What is compiled by
    ``torch.compile`` calls its own hooks outside of the graph; by ``module.compile()``, inside."""
    return {
        inner
        for module in model.modules()
        if is_compiled(module)
        for inner in module.modules()
        if inner is not module or getattr(module, "_compiled_call_impl", None) is not None
    }


def counts() -> Counts | None:
    """``{frames, ok, graphs, breaks, seconds}`` of this process so far; None where nothing can have been compiled."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return None
    counters: Mapping[str, Mapping[str, int]] = utils.counters
    frames, stats = counters.get("frames", {}), counters.get("stats", {})
    return {
        "frames": frames.get("total", 0),
        "ok": frames.get("ok", 0),
        "graphs": stats.get("unique_graphs", 0),
        "breaks": sum(counters.get("graph_break", {}).values()),
        # Long the first time, short where inductor's cache has the kernels.
        "seconds": round(sum(sum(utils.compilation_time_metrics.get(part, ())) for part in PARTS), 2),
    }


def since(before: Counts | None) -> Counts | None:
    now = counts()
    return now and {name: count - (before or {}).get(name, 0) for name, count in now.items()}
