"""A launcher in front of another one: what was run already, by the same word, is not run again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dist_checks.axes import Setting
from launch.base import Exit, Job, Launcher

ALWAYS = ("folder", "fault")
"""Of a payload: what differs though the rung is the same."""


class SharingLauncher:
    """Ladders of healthy rungs, and of faults, have singles in common. A rung in which a fault can do nothing, because
    it is on one device and the fault needs axes, is that of the healthy ladder: its files are linked into the folder.
    """

    def __init__(self, inner: Launcher) -> None:
        self._inner = inner
        self._done: dict[str, tuple[Path, Exit]] = {}
        self.harmless: Callable[[Setting], bool] = lambda setting: False
        """Whether the fault that is being planted does nothing in a setting."""
        self.healthy = 0
        """Rungs that were run without a fault."""

    def run(self, jobs: Iterable[Job], on_start: Callable[[Job], None] = lambda job: None) -> Iterator[Exit]:
        fresh: list[Job] = []
        keys: dict[str, str] = {}
        for job in jobs:
            key = self._key(job)
            if key in self._done:
                yield self._link(job, *self._done[key])
            else:
                fresh.append(job)
                keys[job.name] = key
        by_name = {job.name: job for job in fresh}
        for exit in self._inner.run(fresh, on_start):
            job = by_name[exit.job]
            if "fault" not in job.payload and "rung" in job.payload:
                self.healthy += 1
                if keys[job.name]:
                    self._done[keys[job.name]] = job.folder, exit
            yield exit

    def _key(self, job: Job) -> str:
        """Empty for what is not shared."""
        payload: dict[str, Any] = dict(job.payload)
        rung = payload.get("rung")
        if rung is None or job.cold:
            return ""
        if "fault" in payload and not self.harmless(Setting(rung["setting"])):
            return ""
        kept = {name: value for name, value in payload.items() if name not in ALWAYS}
        # Twins are run to be compared with what they repeat: each is a run of its own.
        words = {name: value for name, value in rung.items() if name not in ("reference", "truth", "planned")}
        return json.dumps([kept | {"rung": words}, job.world_size], sort_keys=True)

    def _link(self, job: Job, folder: Path, exit: Exit) -> Exit:
        job.folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            os.link(path, job.folder / path.name)
        return exit

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
