"""The names of parameters as the plain single-device model has them, whatever wraps the modules."""

from __future__ import annotations

import re
from collections.abc import Iterable

WRAPPERS = frozenset(
    (
        "module",  # DistributedDataParallel, DataParallel, DeepSpeed's engine
        "_orig_mod",  # torch.compile
        "_checkpoint_wrapped_module",  # activation checkpointing
        "_fsdp_wrapped_module",  # FSDP1
    )
)
"""Names under which wrappers keep the module that they wrap."""

STAGE = "_pipeline_stage_"
"""A rank of a pipeline that has several stages keeps each under this name with its number."""

_DROPPED = re.compile(rf"{'|'.join(sorted(WRAPPERS))}|{STAGE}\d+")


def plain(name: str) -> str:
    """``module.blocks.0._orig_mod.wq.weight`` -> ``blocks.0.wq.weight``."""
    return ".".join(part for part in name.split(".") if not _DROPPED.fullmatch(part))


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Plain name of each name, in order. ValueError where two of them would become one."""
    out: dict[str, str] = {}
    taken: dict[str, str] = {}
    for name in names:
        out[name] = plain(name)
        other = taken.setdefault(out[name], name)
        if other != name:
            raise ValueError(
                f"{other!r} and {name!r} are both {out[name]!r} without wrapper prefixes "
                f"({', '.join(sorted(WRAPPERS))}): rename one of the modules"
            )
    return out
