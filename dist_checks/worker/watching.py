"""A thread on each rank that says what the rank waits for, when whoever started it asks before ending it."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from dist_checks.probe.ledger import Ledger

ASKS = "LAUNCH_ASKS"
"""Environment variable: a folder where the launcher makes a file ``ask``; it waits for ``told-00000`` there, of ranks
that have left a ``watch-00000``."""
INTERVAL = 0.1  # seconds between two looks


def start(rank: int, ledger: Ledger) -> None:
    """On every rank. The thread ends with the process, or once it has answered."""
    if folder := os.environ.get(ASKS):
        threading.Thread(target=_watch, args=(Path(folder), rank, ledger), name="watching", daemon=True).start()


def _watch(folder: Path, rank: int, ledger: Ledger) -> None:
    with suppress(OSError):
        (folder / f"watch-{rank:05d}").touch()
    while not (folder / "ask").exists():
        time.sleep(INTERVAL)
    try:
        ledger.hang()
    finally:  # whatever went wrong with it: nobody is to wait for this rank in vain
        with suppress(OSError):
            (folder / f"told-{rank:05d}").touch()
