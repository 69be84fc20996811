"""Disturbs small runs at random, from a seed, and counts what must never happen."""

from __future__ import annotations

import argparse
import collections
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from corruptions import HOWS

from dist_checks import session
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
deadline = 240.0
stall = 100.0
"""
GONE = 3.0  # seconds in which everything has to be gone once the harness is
SOON = 3.0  # seconds after the first rung has begun in which somebody is killed
LONGEST = 600.0  # seconds that a run may take
CORRUPTED = "corrupted"
SUFFIXES = (".jsonl", ".digests", ".collectives")


@dataclass
class Seen:
    """The figures: those of the second half must be zero."""

    kills: collections.Counter[str] = field(default_factory=collections.Counter)
    runs: int = 0
    resumed: int = 0
    disturbed: collections.Counter[str] = field(default_factory=collections.Counter)  # those in runs that had begun
    blamed: int = 0  # killed ranks that the report had to name
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
        self.dead: set[int] = set()  # process ids of ranks that were killed
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
            print(self.seen, flush=True)

    def _disturbed(self, arguments: list[str], out: Path, count: int) -> bool:
        """One harness, until it ends; True where it was killed."""
        harness = self._start(arguments)
        started: set[psutil.Process] = {psutil.Process(harness.pid)}
        end = time.monotonic() + LONGEST
        # Sometimes while it starts, mostly when its rungs have begun.
        begun = self.random.random() < 0.2
        due = time.monotonic() + self.random.uniform(0.0, self.usual)
        killed, what = False, self._next()
        while harness.poll() is None:
            assert time.monotonic() < end, f"hangs: {started}"
            agents, ranks = self._processes(harness.pid)
            started |= {*agents, *ranks}
            if not (out / "rungs").exists():  # this rank only describes the recipe: its end disturbs no rung
                ranks = []
            if not begun and (out / "rungs").exists():
                begun, due = True, time.monotonic() + self.random.uniform(0.0, SOON)
            if begun and time.monotonic() > due and sum(self.seen.kills.values()) < count:
                victims = {"rank": ranks, "agent": agents, "harness": [psutil.Process(harness.pid)]}[what]
                if victims:
                    victim = self.random.choice(victims)
                    with suppress(psutil.NoSuchProcess):
                        has_rungs = (out / "rungs").exists()
                        victim.kill()
                        self.seen.kills[what] += 1
                        self.seen.disturbed[what] += has_rungs
                        killed |= what == "harness"
                        if what == "rank":
                            self.dead.add(victim.pid)
                    due, what = time.monotonic() + self.random.uniform(0.05, SOON / 2), self._next()
            time.sleep(0.02)
        self._expect_gone(started)
        text = (self.folder / "harness.log").read_text(errors="replace")
        if "itself broke" in text or ("Traceback" in text and not killed):
            self.seen.wrong["tracebacks"].append(text)
        if killed and (out / "plan.json").exists():
            self._judge(out, "killed")
        elif (out / "report.json").exists():
            self._expect_named(out)
        return killed

    def _next(self) -> str:
        """Chosen before it is due: there are no ranks yet while a harness starts."""
        return self.random.choices(("rank", "agent", "harness"), (5, 2, 2))[0]

    def _expect_named(self, out: Path) -> None:
        """The rank that was killed is in the report, by number; of several, the first of a job."""
        findings = json.loads((out / "report.json").read_text())["findings"]
        for path in out.glob("rungs/*/exit.json"):
            exit = json.loads(path.read_text())
            for rank in exit["ranks"]:
                if (
                    rank["pid"] in self.dead
                    and rank["signal"] == signal.SIGKILL
                    and rank["rank"] == exit["first_failed"]
                ):
                    self.seen.blamed += 1
                    said = [f["message"] for f in findings if f["rung"] == path.parent.name and f["status"] != "pass"]
                    if not any(f"rank {rank['rank']}, signal 9" in message for message in said):
                        self.seen.wrong["unnamed"].append(f"{path}: rank {rank['rank']}: {said}")

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
        planned = {rung["id"] for rung in json.loads((out / "plan.json").read_text())["rungs"]}
        told = {rung["id"] for rung in report["rungs"]}
        if report["status"] == "pass" and not planned <= told:
            self.seen.wrong["false PASS"].append(f"{out} {when}: nothing is said of {planned - told}")
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
            if rung["status"] == "fail" and not self._was_hit(own):
                self.seen.wrong["false FAIL"].append(f"{own} {when}: {_why(report)}")
            self.seen.wrong["lost records"] += _lost(own, golden, rung["world_size"])
        return report

    def _was_hit(self, own: Path) -> bool:
        """One of its ranks was killed; where it was run again, one of the first run."""
        exits = [json.loads(path.read_text()) for path in own.parent.glob(f"{own.name.partition('@')[0]}*/exit.json")]
        return any(rank["pid"] in self.dead for exit in exits for rank in exit["ranks"])

    # Corruptions.

    def corrupt(self, count: int) -> None:
        """Judges copies of the golden run, each with one thing wrong in one file of one rank."""
        number = 0
        while number < count:
            copy = self.folder / "copy"
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self.golden, copy)
            how = self.random.choice(HOWS)
            files = [copy / "plan.json", *sorted(path for path in copy.glob("rungs/*/*") if _is_read(path))]
            path = self.random.choice(files)
            before = path.read_bytes()
            how(path, self.random)
            if path.is_file() and _says_the_same(path, before):
                continue
            number += 1
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
            told = json.dumps(report)
            rank = path.name.partition(".")[0].removeprefix("rank-")
            if path.name not in told and not (rank.isdigit() and f"rank {int(rank)}" in told):
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


def _is_read(path: Path) -> bool:
    return path.suffix in SUFFIXES or path.name == "exit.json"


def _says_the_same(path: Path, before: bytes) -> bool:
    """A blank at the end of JSON changes nothing."""
    now = path.read_bytes()
    return now.rstrip() == before.rstrip() if path.suffix == ".json" else now == before


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
    """Records that are gone although the step in which they were written had ended. The judge is not asked."""
    wrong = []
    for path in _files(own, world_size):
        try:
            lines = path.with_suffix(".jsonl").read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            continue
        steps = [json.loads(line) for line in lines if line.endswith(b"}\n") and b'"event":"step"' in line]
        if not steps:
            continue
        promised = int(steps[-1]["digests"])
        mine = path.read_bytes()[: promised * RECORD_BYTES]
        theirs = (golden / path.name).read_bytes()[: promised * RECORD_BYTES]
        if mine != theirs or [step["step"] for step in steps] != list(range(len(steps))):
            wrong.append(f"{own} {path.name}: {len(mine) // RECORD_BYTES} of {promised}, {len(steps)} steps")
    return wrong


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
