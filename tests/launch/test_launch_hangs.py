"""Jobs that do not end: how that is noticed, and what ranks may still say."""

from __future__ import annotations

import re
import subprocess
import sys

import parts
import pytest
from launch_watching import only

from launch import Job, State
from launch.spying import spy

pytestmark = pytest.mark.timeout(60)


def test_no_sign_of_life(launcher, job):
    exit = only(launcher.run([job("stop_growing", payload={"beats": 8}, stall=1.0, pulse=".trace")]))
    assert exit.state == State.TIMED_OUT
    assert 1.5 < exit.seconds < 5.0, "long before the deadline, and not before the last sign"
    first, *where = exit.error.splitlines()
    assert first == "2 of 2 ranks had shown no sign of life for 1 s: ranks 0, 1"
    assert [line.partition(" (")[0] for line in where] == ["rank 0 was in stop_growing", "rank 1 was in stop_growing"]
    assert all(rank.where.startswith("stop_growing (launch_entries.py:") for rank in exit.ranks)


def test_slow_is_not_hung(launcher, job):
    exit = only(launcher.run([job("stop_growing", payload={"beats": 60}, stall=1.0, pulse=".trace")]))
    assert exit.state == State.DONE


def test_any_file_of_a_rank_is_a_sign_of_life(launcher, job):
    exit = only(launcher.run([job("stop_growing", payload={"beats": 0}, stall=1.0)]))
    assert exit.state == State.DONE, "its log grows"


def test_a_stall_is_a_positive_number(tmp_path):
    with pytest.raises(ValueError, match=r"stall \(0\) must be a positive number"):
        Job(name="job", folder=tmp_path, world_size=1, entry="a:b", stall=0)


@pytest.mark.parametrize("seconds", [0.0, 1.5])
def test_all_ranks_have_told_before_one_is_ended(launcher, job, seconds):
    exit = only(launcher.run([job("answer", payload={"seconds": seconds}, deadline=1.0)]))
    assert exit.state == State.TIMED_OUT
    assert ["I wait for the moon" in rank.log.read_text() for rank in exit.ranks] == [True, True]
    assert exit.seconds < 1.0 + seconds + 1.0


def test_a_rank_that_promises_to_tell_is_not_waited_for_for_ever(launcher, job):
    exit = only(launcher.run([job("answer", payload={"seconds": 30.0}, deadline=0.5)]))
    assert exit.state == State.TIMED_OUT
    assert exit.seconds < 12.0, "py-spy takes its time too"


def test_the_others_are_asked_when_a_rank_fails(launcher, job):
    exit = only(launcher.run([job("answer", payload={"seconds": 0.5, "fails": True})]))
    assert (exit.state, exit.first_failed) == (State.FAILED, 0)
    assert "I wait for the moon" in exit.ranks[1].log.read_text()
    assert exit.seconds < 3.0


@pytest.fixture
def spied():
    """Skips where the kernel does not let py-spy look at a process of this user."""
    parts.need("py-spy")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        try:
            looked = subprocess.run(
                [spy(), "dump", "--pid", str(child.pid)], check=False, capture_output=True, text=True
            )
        finally:
            child.kill()
    if "ermission" in looked.stderr or "not permitted" in looked.stderr:
        pytest.skip(f"ptrace is not allowed here: {looked.stderr.strip()}")


def test_a_rank_that_is_stopped_is_looked_at_from_outside(spied, launcher, job):
    exit = only(launcher.run([job("stop_oneself", deadline=1.0)]))
    assert exit.state == State.TIMED_OUT
    assert exit.ranks[1].where.startswith("stop_oneself (launch_entries.py:")
    said = exit.ranks[1].log.read_text()
    assert "py-spy, as this rank does not answer:\nProcess" in said
    assert "py-spy" not in exit.ranks[0].log.read_text(), "it has written its stacks itself"


def test_a_rank_that_holds_the_lock_is_seen_with_native_frames(spied, launcher, job):
    exit = only(launcher.run([job("promise_and_hold_the_lock", deadline=0.5)]))
    assert exit.state == State.TIMED_OUT
    assert exit.ranks[1].where.startswith("hang_here (launch_entries.py:")
    said = exit.ranks[1].log.read_text().partition("py-spy, as this rank does not answer:")[2]
    assert re.search(r"sleep \(\S*libc", said), said
