"""However a rank ends, the verdict names it, and what the others said because of it is no cause."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import limits
import pytest
from ladders import Ladder, broken, findings

from dist_checks.judging.verdict import ExitCode

FEW = {"options": {"layers": 1}, "blame": {"budget": 0}}


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("Killed", "rank 1, signal 9 failed in step 1: killed by SIGKILL"),
        ("Crashed", "rank 1, signal 11 failed in step 1: killed by SIGSEGV"),
        ("Aborted", "rank 1, signal 6 failed in step 1: killed by SIGABRT"),
        ("Threw", "rank 1, exit code 1 failed in step 1: KeyError: 'no such batch'"),
        ("OutOfMemory", "rank 1, exit code 1 failed in step 1: RuntimeError: "),
        ("Left", "rank 1 left with exit code 0 before its work was done"),
        ("LeftAtOnce", "rank 1 left with exit code 0 before its work was done"),
    ],
)
def test_the_rank_that_ended_is_the_cause(
    ladder: Ladder, monkeypatch: pytest.MonkeyPatch, way: str, words: str
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    launch = {"cold_twin": False, "deadline": 60.0, "stall": 20.0}
    outcome = ladder({"dp_replicate": 3}, recipe=f"ending_recipe:{way}", launch=launch, **FEW)
    assert outcome.exit_code() is ExitCode.FAIL
    assert broken(outcome.report) == [["dp_replicate"]]
    [crash] = findings(outcome.report, "completes", "dp_replicate3")
    assert crash["message"].startswith(words), crash["message"]
    assert crash["ranks"] == [1]
    statuses = {rung["id"]: rung["status"] for rung in outcome.report["rungs"]}
    assert statuses["single"] == "pass"


def test_out_of_memory(tmp_path: Path) -> None:
    """The kernel kills without a word: it is asked whether it was lack of memory, in a container or a job of Slurm."""
    (tmp_path / "m.toml").write_text(
        'recipe = "ending_recipe:Greedy"\nsteps = 3\n[options]\nlayers = 1\n[axes]\ndp_replicate = [3]\n'
        "[launch]\ncold_twin = false\n[blame]\nbudget = 0\n"
    )
    with limits.cgroup(2**31) as cgroup:
        done = subprocess.run(
            [sys.executable, "-m", "dist_checks", "run", str(tmp_path / "m.toml"), "--out", str(tmp_path / "run")],
            env=os.environ | {"PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), *sys.path))},
            preexec_fn=lambda: (cgroup / "cgroup.procs").write_text(str(os.getpid())) and None,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == ExitCode.FAIL, done.stderr
    [crash] = findings(json.loads((tmp_path / "run" / "report.json").read_text()), "completes", "dp_replicate3")
    expected = (
        r"rank 1, signal 9 failed in step 1: killed by SIGKILL: the kernel has ended \d+ process(es)? of this host "
    )
    assert re.match(expected + "for lack of memory meanwhile", crash["message"]), crash["message"]
    assert crash["ranks"] == [1]


def test_a_process_that_dies_after_all_was_done(ladder: Ladder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything was computed and recorded: that is what is judged, and how the process ended is said."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    outcome = ladder({"dp_replicate": 3}, recipe="ending_recipe:DiesAfterAll", **FEW)
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    [said] = [f for f in outcome.report["findings"] if (f["check"], f["rung"]) == ("completes", "dp_replicate3")]
    assert said["message"] == "3 ranks ran 3 steps to the end; rank 1 died of signal 6 after that"
