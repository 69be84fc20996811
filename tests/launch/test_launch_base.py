"""Jobs are checked at the door, and the package asks for nothing but the standard library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import launch
from launch import Job
from launch.logs import tail, where

pytestmark = pytest.mark.timeout(60)

GOOD = {"name": "tp2", "folder": Path("tp2"), "world_size": 2, "entry": "a.b:c"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "a job needs a name"),
        ({"world_size": 0}, r"job 'tp2': world_size \(0\) must be at least 1"),
        ({"entry": ""}, "job 'tp2': give either an entry or an argv"),
        ({"argv": ("python",)}, "job 'tp2': give either an entry or an argv"),
        ({"entry": "a.b"}, "job 'tp2': entry 'a.b' must read 'package.module:function'"),
        ({"deadline": 0.0}, r"job 'tp2': deadline \(0.0\) must be a positive number of seconds"),
        ({"deadline": float("inf")}, "must be a positive number of seconds"),
        ({"env": {"A": 1}}, r"job 'tp2': env must map text to text, not so for \['A'\]"),
        ({"payload": {"a": object()}}, "job 'tp2': the payload must be JSON: Object of type object"),
    ],
)
def test_jobs_that_cannot_be(change, message):
    with pytest.raises(ValueError, match=message):
        Job(**(GOOD | change))


def test_slots_must_be_there():
    with pytest.raises(ValueError, match=r"slots \(0\) must be at least 1"):
        launch.LocalLauncher(slots=0)


def test_exports():
    assert sorted(launch.__all__) == launch.__all__
    assert all(hasattr(launch, name) for name in launch.__all__)


FORBIDDEN = "import sys; found = {'torch', 'numpy', 'dist_checks'} & sys.modules.keys(); sys.exit(', '.join(found))"


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        ("launch, launch.agent, launch.cold, launch.rank", ""),
        ("numpy, launch", "numpy"),  # this test can fail
    ],
)
def test_import_is_light(modules, found):
    child = subprocess.run(
        [sys.executable, "-c", f"import {modules}; {FORBIDDEN}"], check=False, stderr=subprocess.PIPE, text=True
    )
    assert child.stderr.strip() == found


STACKS = """said
Thread 0x1 (most recent call first):
  File "/usr/x/other.py", line 1 in other

Current thread 0x2 (most recent call first):
  File "/env/site-packages/torch/distributed/c10d.py", line 12 in all_reduce
  File "/home/me/train.py", line 3 in step
  File "/home/me/train.py", line 9 in main
more
"""


def test_where_a_rank_was(tmp_path):
    log = tmp_path / "log"
    assert where(log) == tail(log) == ""
    log.write_text("nothing here")
    assert where(log) == ""
    log.write_text(STACKS)
    assert where(log) == "all_reduce (c10d.py:12), from step (train.py:3)"
    log.write_text(STACKS.replace("Current thread", "Thread"))
    assert where(log) == "all_reduce (c10d.py:12), from step (train.py:3)"


def test_tail_is_short(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"%d \xff\n" % number for number in range(100)))
    assert tail(log, lines=2) == "98 \ufffd\n99 \ufffd"
    log.write_bytes(b"x" * 10000)
    assert len(tail(log)) == 4096
