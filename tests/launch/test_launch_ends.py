"""How ranks end, and what is said about it."""

from __future__ import annotations

import json
import signal
import sys
import time

import pytest
from launch_watching import only, recorded

from launch import Exit, LaunchError, LocalLauncher, State

pytestmark = pytest.mark.timeout(60)


def log(exit: Exit, rank: int) -> str:
    return exit.ranks[rank].log.read_text()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_is_well(launcher, job, world_size):
    exit = only(launcher.run([job("hello", world_size=world_size)]))
    assert (exit.state, exit.error, exit.first_failed) == (State.DONE, "", None)
    assert [(rank.rank, rank.code, rank.signal, rank.error) for rank in exit.ranks] == [
        (number, 0, None, "") for number in range(world_size)
    ]
    assert [log(exit, rank) for rank in range(world_size)] == [f"hello from {rank}\n" for rank in range(world_size)]
    assert len(exit.hosts) == world_size
    assert len({rank.pid for rank in exit.ranks}) == world_size
    assert 0 < exit.seconds < 20
    assert all(0 < rank.ended <= exit.seconds for rank in exit.ranks)


def test_one_rank_raises(launcher, job, tmp_path):
    exit = only(launcher.run([job("raise_on_one", world_size=3)]))
    assert (exit.state, exit.first_failed) == (State.FAILED, 1)
    assert exit.ranks[1].code == 1
    assert exit.ranks[1].error.startswith("Traceback (most recent call last):\n  File ")
    assert exit.ranks[1].error.count("  File ") == 1  # the frames of the launcher are left out
    assert exit.ranks[1].error == log(exit, 1)
    assert [(exit.ranks[rank].signal, exit.ranks[rank].killed) for rank in (0, 2)] == [(signal.SIGKILL, True)] * 2
    first, *_, last = exit.error.splitlines()
    assert first.startswith("rank 1 of 3 failed first, 0.")
    assert first.endswith(" s after the start: ZeroDivisionError: one")
    assert last == "killed because of that: ranks 0, 2"
    assert exit.seconds < 3
    stored = json.loads((tmp_path / "job" / "exit.json").read_text())
    assert stored.pop("checksum") > 0
    assert stored == exit.as_json()
    assert Exit.from_json(exit.as_json(), tmp_path / "job") == exit


def test_consequences_are_not_the_cause(launcher, job):
    exit = only(launcher.run([job("raise_one_after_another", world_size=4)]))
    assert (exit.state, exit.first_failed) == (State.FAILED, 1)
    assert [rank.killed for rank in exit.ranks] == [False] * 4
    assert exit.error.endswith("failed after that: ranks 0, 2, 3")


def test_a_death_comes_before_what_it_causes(launcher, job):
    exit = only(launcher.run([job("die_and_be_missed", world_size=2)]))
    assert exit.first_failed == 1
    assert exit.error.startswith("rank 1 of 2 failed first")
    assert "killed by SIGKILL" in exit.error


def test_who_lost_a_peer_was_not_the_first(launcher, job):
    """It takes a process a while to abort: the others may have said that it is gone before it is."""
    exit = only(launcher.run([job("abort_slowly", world_size=2)]))
    assert exit.first_failed == 1
    assert exit.error.endswith("failed after that: rank 0")


def test_who_dies_after_its_work_ends_nobody(launcher, job):
    """As DeepSpeed does now and then while the interpreter ends."""
    exit = only(launcher.run([job("die_after_all")]))
    assert (exit.state, exit.first_failed) == (State.FAILED, 1)
    assert (exit.ranks[0].code, exit.ranks[1].signal) == (0, signal.SIGABRT)
    assert log(exit, 0) == "done\n"
    assert exit.error.startswith("rank 1 of 2 failed after its work was done, ")
    assert "killed by SIGABRT" in exit.error


def test_who_died_after_its_work_is_not_the_cause(launcher, job):
    exit = only(launcher.run([job("die_after_all", payload={"fails": True})]))
    assert (exit.state, exit.first_failed) == (State.FAILED, 0)
    assert "failed first" in exit.error
    assert exit.error.endswith("failed after that: rank 1")


@pytest.mark.parametrize(("code", "state"), [(3, State.FAILED), (0, State.DONE), (None, State.DONE)])
def test_exit_codes_count(launcher, job, code, state):
    exit = only(launcher.run([job("leave_with", payload={"code": code})]))
    assert exit.state == state
    assert exit.ranks[0].code == (code or 0)
    assert exit.ranks[0].error == ""
    assert exit.ranks[1].code == 0
    assert ("exit code 3" in exit.error) == (code == 3)


def test_exit_with_a_message(launcher, job):
    exit = only(launcher.run([job("leave_with", payload={"code": "no data"})]))
    assert exit.ranks[0].code == 1
    assert exit.error.endswith("exit code 1\nits log ends with:\nno data")


def test_killed_rank(launcher, job):
    exit = only(launcher.run([job("signal_oneself", payload={"signal": signal.SIGKILL})]))
    assert (exit.state, exit.first_failed) == (State.FAILED, 1)
    assert (exit.ranks[1].code, exit.ranks[1].signal, exit.ranks[1].killed) == (None, signal.SIGKILL, False)
    assert "killed by SIGKILL\nits log ends with:\nlast words\n" in exit.error


def test_segmentation_fault_shows_its_stack(launcher, job):
    exit = only(launcher.run([job("segfault")]))
    assert (exit.first_failed, exit.ranks[1].signal) == (1, signal.SIGSEGV)
    assert "killed by SIGSEGV" in exit.error
    assert "in segfault" in exit.error
    assert "in segfault" in log(exit, 1)


def test_a_rank_may_be_done_before_the_others(launcher, job):
    exit = only(launcher.run([job("leave_early", world_size=3)]))
    assert exit.state == State.DONE
    assert exit.ranks[0].ended < exit.ranks[1].ended - 0.3


def test_deadline(launcher, job):
    exit = only(launcher.run([job("hang_here", world_size=3, deadline=1.0)]))
    assert (exit.state, exit.first_failed) == (State.TIMED_OUT, None)
    assert exit.ranks[0].code == 0
    assert [(exit.ranks[rank].signal, exit.ranks[rank].killed) for rank in (1, 2)] == [(signal.SIGKILL, True)] * 2
    assert "in hang_here" in log(exit, 1)
    assert "in hang_here" in log(exit, 2)
    first, *where = exit.error.splitlines()
    assert first == "2 of 3 ranks had not ended after 1 s, their deadline: ranks 1, 2"
    assert [line.partition(" (launch_entries.py:")[0] for line in where] == [
        "rank 1 was in hang_here",
        "rank 2 was in hang_here",
    ]
    assert 1.0 <= exit.seconds < 4.0


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("no.such.module:main", "ModuleNotFoundError: No module named 'no'"),
        ("launch_entries:nobody", "AttributeError: module 'launch_entries' has no attribute 'nobody'"),
    ],
)
def test_an_entry_that_is_not_there(launcher, job, tmp_path, entry, said):
    from launch import Job

    exit = only(launcher.run([Job(name="job", folder=tmp_path / "job", world_size=1, entry=entry)]))
    assert (exit.state, exit.first_failed) == (State.FAILED, 0)
    assert exit.error.splitlines()[0].endswith(said)
    assert exit.ranks[0].error.endswith(f"{said}\n")


def test_a_preload_that_is_not_there(job):
    with LocalLauncher(preload=["no_such_module"]) as launcher:
        start = time.monotonic()
        with pytest.raises(LaunchError, match=r"cannot preload no_such_module:\n[^$]*ModuleNotFoundError"):
            list(launcher.run([job("hello")]))
        assert time.monotonic() - start < 10


def test_a_command(launcher, job, tmp_path):
    script = (
        "import os, sys; print(os.environ['RANK'], os.environ['WORLD_SIZE'], sys.argv[1]); sys.exit(int(sys.argv[1]))"
    )
    jobs = [job(name=f"job{code}", argv=(sys.executable, "-c", script, str(code))) for code in (0, 5)]
    good, bad = sorted(launcher.run(jobs), key=lambda exit: exit.job)
    assert (good.state, bad.state) == (State.DONE, State.FAILED)
    assert log(good, 1) == "1 2 0\n"
    assert "exit code 5" in bad.error
    assert good.notes == ()


def test_a_command_that_is_not_there(launcher, job):
    exit = only(launcher.run([job(world_size=1, argv=("/no/such/command",))]))
    assert exit.state == State.FAILED
    assert exit.ranks[0].code == 127
    assert "cannot execute '/no/such/command': No such file or directory" in exit.error


def test_a_command_past_its_deadline(launcher, job):
    argv = (sys.executable, "-c", "import time\ndef stuck(): time.sleep(60)\nstuck()")
    exit = only(launcher.run([job(world_size=1, argv=argv, deadline=1.5)]))
    assert exit.state == State.TIMED_OUT
    assert "was in stuck (<string>:2)" in exit.error


def test_a_folder_that_cannot_be_made(launcher, job, tmp_path):
    (tmp_path / "job").write_text("a file")
    with pytest.raises(FileExistsError):
        list(launcher.run([job("hello")]))
    assert recorded(tmp_path) == set()
