"""Writes down which collectives a rank has called, in the order of each group, while the flight recorder knows them."""

from __future__ import annotations

import bisect
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from dist_checks.probe import flight
from dist_checks.probe.flight import Collective
from dist_checks.trace import BEFORE, SCHEMA, Chain, collectives_path, writing

PATIENCE = 1.0
"""Seconds that a thread which describes a hang waits for one that is writing."""


class Ledger:
    """On every rank, from before the first process group is made: appends to the rank's ``.collectives`` file.

    What is new is read from the recorder's ring when a step has ended and the ring may be half full by the end of the
    next one, so that reading costs a few microseconds for each collective however many steps there are.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        path = collectives_path(folder, rank)
        self.folder = folder
        self._rank = rank
        self._chain = Chain(path)
        with writing(path, rank):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = path.open("w", encoding="utf-8")
        self._lock = threading.Lock()
        self._main = threading.main_thread().ident
        self._since: dict[str, int] = {}
        self._pending: dict[tuple[str, int], Collective] = {}
        self._groups: dict[str, int] = {}
        self._calls: dict[tuple[object, ...], int] = {}
        self._ends: list[int] = []  # of the set-up and of each step, in nanoseconds of the wall clock
        self._before = BEFORE  # the step that had ended when this process began
        self._unread = self._most = 0  # steps since the ring was read; most collectives that a step has had
        self._last = 0
        self._write("header", schema=SCHEMA, rank=rank)
        self._flush()

    def started(self, first: int = 0) -> None:
        """Step ``first`` begins: the first, or where a run goes on."""
        self._before = first - 1
        self._ends = [time.time_ns()]

    def step(self) -> None:
        """A step has ended."""
        self._ends.append(time.time_ns())
        self._unread += 1
        if self._last == 0 or (self._unread + 1) * self._most > flight.ring_size() // 2:
            self.read()

    def read(self) -> None:
        """Write down what is new."""
        with self._lock:
            self._read()
            self._flush()

    def end(self) -> None:
        """All that this rank has called is written: up to here."""
        with self._lock:
            self._read()
            self._write("end")
            self._flush()

    def left(self) -> None:
        """The last word of a rank whose work went well: from now on it waits for nobody."""
        with self._lock:
            self._write("left")
            self._file.close()

    def abandon(self) -> None:
        """The run was cut short."""
        with self._lock:
            self._file.close()

    def hang(self) -> None:
        """From another thread: write down what is new, and where the main thread is."""
        stack = flight.site(flight.frames_of(sys._current_frames().get(self._main or 0)))
        held = self._lock.acquire(timeout=PATIENCE)
        try:
            if held and not self._file.closed:
                self._read()
                self._write("hang", step=len(self._ends) + self._before, site=stack)
                self._flush()
        finally:
            if held:
                self._lock.release()

    def _read(self) -> None:
        if not flight.is_recording():
            return
        records: list[list[int]] = []
        fresh = 0
        for found, lost in flight.collectives(self._since, self._pending):
            if lost:
                self._write("lost", count=lost)
            group = self._group(found)
            step = bisect.bisect_left(self._ends, found.at) + self._before
            records.append([group, found.sequence, self._call(found), step, int(found.pending)])
            fresh += 1
        if records:
            self._write("collectives", records=records)
        self._most = max(self._most, -(-fresh // max(self._unread, 1)))
        self._unread, self._last = 0, self._last + 1

    def _group(self, found: Collective) -> int:
        """Its ranks are asked for when it is first seen: later it may be gone."""
        index = self._groups.get(found.group)
        if index is None:
            index = self._groups[found.group] = len(self._groups)
            self._write(
                "group",
                index=index,
                name=found.group,
                description=found.description,
                ranks=flight.ranks_of(found.group),
            )
        return index

    def _call(self, found: Collective) -> int:
        """Calls that are alike are written once."""
        key = (found.operation, found.inputs, found.outputs, found.site)
        index = self._calls.get(key)
        if index is None:
            index = self._calls[key] = len(self._calls)
            self._write(
                "call",
                index=index,
                operation=found.operation,
                inputs=found.inputs,
                outputs=found.outputs,
                site=found.site,
            )
        return index

    def _write(self, event: str, **fields: Any) -> None:
        with writing(self._file.name, self._rank):
            self._file.write(self._chain.sign(json.dumps({"event": event, **fields}, separators=(",", ":"))))

    def _flush(self) -> None:
        with writing(self._file.name, self._rank):
            self._file.flush()


_of_worker: Ledger | None = None


def open_for_worker(folder: Path, rank: int) -> Ledger:
    """On every rank, before anything else: the worker's ledger goes on when its probe is closed."""
    global _of_worker
    _of_worker = Ledger(folder, rank)
    return _of_worker


def of_worker(folder: Path) -> Ledger | None:
    """The one that the worker has opened in this folder."""
    return _of_worker if _of_worker is not None and _of_worker.folder == folder else None
