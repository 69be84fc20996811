"""Runs a script of the user's own in a rank that was forked from a warm server: as if python had just started it."""

from __future__ import annotations

import json
import os
import runpy
import sys
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d

from dist_checks.probe import outside, own
from dist_checks.probe.probe import FOLDER


def main(payload: Mapping[str, Any]) -> None:
    """On every rank: ``{"argv": ["train.py", "--tp", "2"], "see": "probe", "folder": str}``."""
    argv = list(payload["argv"])
    sys.argv = argv
    # What the server had imported by these names is not the script's.
    sys.path.insert(0, str(Path(argv[0]).absolute().parent))
    if not torch.accelerator.is_available():
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    keep_groups()
    about = {}
    if payload["see"] == "hooks":
        from dist_checks.probe.unchanged import watch_optimizers

        watch_optimizers()
    elif payload["see"] == "log":  # what the script itself might record is not asked for
        about = json.loads(os.environ.pop(own.RUNG))
        del os.environ[FOLDER]
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as left:
        if left.code not in (None, 0):
            raise
    if about:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        folder, rank = Path(payload["folder"]), int(os.environ["RANK"])
        output = (folder / f"rank-{rank:05d}.log").read_text(errors="replace").splitlines()
        outside.write(folder, rank, about, output)
    own.finish()  # exit handlers of a forked rank do not run: they are the server's


def keep_groups() -> None:
    """Process groups are shut down, but stay in memory: the rank ends anyway.

    A script that destroys them and then frees its DDP may hang, see tests/upstream/test_freed_group.py.
    """
    original = c10d.destroy_process_group
    kept: list[object] = []

    @wraps(original)
    def destroy(*args: Any, **kwargs: Any) -> None:
        kept.extend(c10d._world.pg_map)
        original(*args, **kwargs)

    c10d.destroy_process_group = torch.distributed.destroy_process_group = destroy
