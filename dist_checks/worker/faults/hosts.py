"""Which of several simulated hosts a rank is on, for the faults of one host."""

from __future__ import annotations

import os

NODES = "LAUNCH_NODES"
"""Set by a launcher that simulates hosts: their names, for each rank."""

BAD = os.environ.get("DIST_CHECKS_FAULTY_NODE", "n1")
"""The one that the faults are about."""


def host() -> str:
    """Of this rank: as its launcher names the node, or as hosts are simulated; empty where there is one only."""
    if node := os.environ.get("LAUNCH_HOST"):
        return node
    names = os.environ.get(NODES, "").split(",")
    return names[int(os.environ.get("RANK", "0"))] if len(names) > 1 else ""
