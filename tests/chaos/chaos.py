"""Disturbs small runs at random, from a seed, and counts what must never happen."""

from __future__ import annotations

import argparse
import collections
import io
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from dist_checks import session
from dist_checks.judging.reading import TraceError, read
from dist_checks.matrix import ConfigError
from dist_checks.trace import RECORD_BYTES

MATRIX = """steps = 4
[options]
layers = 1
samples = 40
[train]
batch = 7
[axes]
dp_replicate = [2, 3]
[combine]
mode = "singles"
[launch]
cold_twin = false
deadline = 60.0
stall = 20.0
"""
GONE = 3.0  # seconds in which everything has to be gone once the harness is
LONGEST = 240.0  # seconds that a run may take


@dataclass
class Seen:
    """The figures: those of the second half must be zero."""

    kills: collections.Counter[str] = field(default_factory=collections.Counter)
    runs: int = 0
    resumed: int = 0
    disturbed: int = 0  # kills that hit a run whose rungs had begun
    corrupted: collections.Counter[str] = field(default_factory=collections.Counter)
    statuses: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: dict[str, list[str]] = field(
        default_factory=lambda: {
            what: []
            for what in ("orphans", "lost records", "false PASS", "false FAIL", "unnamed", "tracebacks", "leftovers")
        }
    )

    def __str__(self) -> str:
        counts = {what: len(found) for what, found in self.wrong.items()}
        return json.dumps(vars(self) | {"wrong": counts})


class Chaos:
    """One golden run, then runs that are disturbed: what passes has to have the bits of the golden one."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random, self.seen = folder, random.Random(seed), Seen()
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "m.toml").write_text(MATRIX)
        self.temporary = folder / "tmp"
        self.temporary.mkdir(exist_ok=True)
        self.shared = set(os.listdir("/dev/shm"))
        self.golden = folder / "golden"
        self.usual = 6.0
        if not self.golden.exists():
            start = time.monotonic()
            harness = self._start(["run", str(folder / "m.toml"), "--out", str(self.golden)])
            assert harness.wait(LONGEST) == 0, (folder / "harness.log").read_text()
            self.usual = time.monotonic() - start

    def _start(self, arguments: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / "harness.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dist_checks", *arguments],
                stdout=log,
                stderr=log,
                env=os.environ | {"TMPDIR": str(self.temporary)},
                start_new_session=True,
            )

    # Kills.

    def kill(self, count: int) -> None:
        """Runs, and resumes, until so many processes have been killed."""
        while sum(self.seen.kills.values()) < count:
            out = self.folder / f"run{self.seen.runs}"
            self.seen.runs += 1
            arguments = ["run", str(self.folder / "m.toml"), "--out", str(out)]
            while self._disturbed(arguments, out, count):
                if not (out / "plan.json").exists():
                    break
                self.seen.resumed += 1
                arguments = ["run", "--resume", str(out)]
            if (out / "plan.json").exists():
                self._judge(out, "judged")
            shutil.rmtree(out, ignore_errors=True)

    def _disturbed(self, arguments: list[str], out: Path, count: int) -> bool:
        """One harness, until it ends; True where it was killed."""
        harness = self._start(arguments)
        started: set[psutil.Process] = {psutil.Process(harness.pid)}
        end = time.monotonic() + LONGEST
        due = time.monotonic() + self.random.uniform(0.0, self.usual)
        killed, what = False, self._next()
        while harness.poll() is None:
            assert time.monotonic() < end, f"hangs: {started}"
            agents, ranks = self._processes(harness.pid)
            started |= {*agents, *ranks}
            if not (
                out / "rungs"
            ).exists():  # the first rank only describes the recipe: no rung is disturbed by its end
                ranks = []
            if time.monotonic() > due and sum(self.seen.kills.values()) < count:
                victims = {"rank": ranks, "agent": agents, "harness": [psutil.Process(harness.pid)]}[what]
                if victims:
                    with suppress(psutil.NoSuchProcess):
                        self.random.choice(victims).kill()
                        self.seen.kills[what] += 1
                        self.seen.disturbed += (out / "rungs").exists()
                        killed |= what == "harness"
                    due, what = time.monotonic() + self.random.uniform(0.1, 1.5), self._next()
            time.sleep(0.02)
        self._expect_gone(started)
        text = (self.folder / "harness.log").read_text(errors="replace")
        if "itself broke" in text or ("Traceback" in text and not killed):
            self.seen.wrong["tracebacks"].append(text)
        if killed and (out / "plan.json").exists():
            self._judge(out, "killed")
        return killed

    def _next(self) -> str:
        """Chosen before it is due: there are no ranks yet while a harness starts."""
        return self.random.choices(("rank", "agent", "harness"), (8, 1, 2))[0]

    @staticmethod
    def _processes(pid: int) -> tuple[list[psutil.Process], list[psutil.Process]]:
        with suppress(psutil.NoSuchProcess):
            agents = [child for child in psutil.Process(pid).children() if "launch.agent" in child.cmdline()]
            return agents, [rank for agent in agents for rank in agent.children()]
        return [], []

    def _expect_gone(self, started: set[psutil.Process]) -> None:
        until = time.monotonic() + GONE
        while left := [p for p in started if _is_alive(p)]:
            if time.monotonic() > until:
                self.seen.wrong["orphans"] += [str(process) for process in left]
                return
            time.sleep(0.02)

    def _judge(self, out: Path, when: str) -> dict[str, Any]:
        """What a folder says has to be true of it."""
        try:
            report = session.judge(out)
        except ConfigError as error:
            self.seen.statuses["refused"] += 1
            return {"status": "refused", "error": str(error)}
        except Exception as error:
            self.seen.wrong["tracebacks"].append(f"{out}: {error!r}")
            return {"status": "broke"}
        self.seen.statuses[report["status"]] += 1
        if "the check broke" in json.dumps(report["findings"]):
            self.seen.wrong["tracebacks"].append(f"{out} {when}: a check broke")
        for rung in report["rungs"]:
            own, golden = out / "rungs" / rung["id"], self.golden / "rungs" / rung["id"]
            if not golden.exists():  # a failing rung was run again, to tell a race from a fault: the same bits
                golden = golden.with_name(rung["id"].partition("@")[0])
            if when.startswith(CORRUPTED):
                continue
            if rung["status"] == "pass" and not _same(own, golden, rung["world_size"]):
                self.seen.wrong["false PASS"].append(f"{own} {when}")
            self.seen.wrong["lost records"] += _lost(own, golden, rung["world_size"])
        return report

    # Corruptions.

    def corrupt(self, count: int) -> None:
        """Judges copies of the golden run, each with one thing wrong in one file of one rank."""
        for number in range(count):
            copy = self.folder / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self.golden, copy)
            rungs = sorted((copy / "rungs").iterdir())
            files = [
                p for rung in rungs for p in sorted(rung.iterdir()) if p.suffix in SUFFIXES or p.name == "exit.json"
            ]
            path = self.random.choice(files)
            before = path.read_bytes()
            how = self.random.choice(HOWS)
            how(path, self.random)
            if path.exists() and path.read_bytes() == before:
                continue
            self.seen.corrupted[how.__name__] += 1
            said = io.StringIO()
            with redirect_stderr(said):
                report = self._judge(copy, f"{CORRUPTED} {number}: {how.__name__} {path}")
            if report["status"] == "pass":
                self.seen.wrong["false PASS"].append(f"{number}: {how.__name__} {path.relative_to(copy)}")
            if report["status"] == "fail":
                self.seen.wrong["false FAIL"].append(
                    f"{number}: {how.__name__} {path.relative_to(copy)}: {_why(report)}"
                )
            rank = path.name.partition(".")[0]
            named = (
                rank in json.dumps(report) or f"rank {int(rank[5:])}" in json.dumps(report) if rank != "exit" else True
            )
            if not named:
                self.seen.wrong["unnamed"].append(f"{number}: {how.__name__} {path.relative_to(copy)}")

    def leftovers(self) -> None:
        """After a last healthy run nothing of the dead ones is left."""
        last = self.folder / "last"
        shutil.rmtree(last, ignore_errors=True)
        assert self._start(["run", str(self.folder / "m.toml"), "--out", str(last)]).wait(LONGEST) == 0
        self.seen.wrong["leftovers"] += [
            str(path) for path in self.temporary.iterdir() if not path.name.startswith("torchinductor")
        ]
        mine = [name for name in set(os.listdir("/dev/shm")) - self.shared if "torch" in name]
        self.seen.wrong["leftovers"] += mine


def _is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _why(report: dict[str, Any]) -> list[str]:
    return [f"{found['check']}: {found['message']}" for found in report["findings"] if found["status"] == "fail"]


def _files(own: Path, world_size: int) -> Iterator[Path]:
    for rank in range(world_size):
        yield own / f"rank-{rank:05d}.digests"


def _same(own: Path, golden: Path, world_size: int) -> bool:
    """Every rank ended well, and recorded the very bits of the run that nobody disturbed."""
    codes = [rank["code"] for rank in json.loads((own / "exit.json").read_text())["ranks"]]
    same = (
        a.read_bytes() == b.read_bytes()
        for a, b in zip(_files(own, world_size), _files(golden, world_size), strict=True)
    )
    return codes == [0] * world_size and all(same)


def _lost(own: Path, golden: Path, world_size: int) -> list[str]:
    """Records that are gone although the step in which they were written had ended."""
    wrong = []
    try:
        trace = read(own, world_size) if own.exists() else None
    except TraceError:
        return []
    for rank in trace.ranks if trace else ():
        promised = max((int(step["digests"]) for step in rank.steps.values()), default=0)
        mine = (own / f"rank-{rank.rank:05d}.digests").read_bytes()[: promised * RECORD_BYTES]
        theirs = (golden / f"rank-{rank.rank:05d}.digests").read_bytes()[: promised * RECORD_BYTES]
        if rank.steps and mine != theirs and not rank.problems:
            wrong.append(f"{own} rank {rank.rank}: {len(mine) // RECORD_BYTES} of {promised}")
    return wrong


CORRUPTED = "corrupted"
SUFFIXES = (".jsonl", ".digests", ".collectives")


def flip_a_bit(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def cut(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


def cut_between(path: Path, chance: random.Random) -> None:
    """After a whole line or record."""
    data = path.read_bytes()
    if path.suffix == ".digests":
        path.write_bytes(data[: chance.randrange(len(data) // RECORD_BYTES) * RECORD_BYTES])
    else:
        lines = data.splitlines(keepends=True)
        path.write_bytes(b"".join(lines[: chance.randrange(len(lines))]))


def delete(path: Path, chance: random.Random) -> None:
    path.unlink()


def zero_a_block(path: Path, chance: random.Random) -> None:
    data = bytearray(path.read_bytes())
    at = chance.randrange(len(data))
    length = len(data[at : at + 512])
    data[at : at + length] = bytes(length)
    path.write_bytes(data)


def append(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes() + chance.randbytes(chance.choice((1, 7, RECORD_BYTES))))


def repeat(path: Path, chance: random.Random) -> None:
    """A line or a record twice."""
    data = path.read_bytes()
    size = RECORD_BYTES if path.suffix == ".digests" else len(data.splitlines(keepends=True)[-1])
    path.write_bytes(data + data[-size:])


def leave_out(path: Path, chance: random.Random) -> None:
    """A line or a record in the middle."""
    data = path.read_bytes()
    if path.suffix == ".digests":
        parts = [data[at : at + RECORD_BYTES] for at in range(0, len(data), RECORD_BYTES)]
    else:
        parts = data.splitlines(keepends=True)
    del parts[chance.randrange(len(parts))]
    path.write_bytes(b"".join(parts))


HOWS: tuple[Callable[[Path, random.Random], None], ...] = (
    flip_a_bit,
    flip_a_bit,
    cut,
    cut_between,
    delete,
    zero_a_block,
    append,
    repeat,
    leave_out,
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--kills", type=int, default=200)
    arguments.add_argument("--corruptions", type=int, default=100)
    arguments.add_argument("--seed", type=int, default=0)
    given = arguments.parse_args()
    chaos = Chaos(given.folder, given.seed)
    chaos.corrupt(given.corruptions)
    print(chaos.seen, flush=True)
    chaos.kill(given.kills)
    chaos.leftovers()
    print(chaos.seen)
    for what, found in chaos.seen.wrong.items():
        for each in found[:5]:
            print(f"--- {what}\n{each}")
    sys.exit(any(chaos.seen.wrong.values()))


if __name__ == "__main__":
    main()
