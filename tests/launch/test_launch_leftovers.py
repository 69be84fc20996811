"""Whatever happens to the launcher or its agent, no process stays behind and nobody waits for ever."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from multiprocessing import shared_memory
from pathlib import Path

import pytest
from launch_watching import assert_gone, only, pids_folder, recorded, state_of, wait_for

from launch import LocalLauncher, State

pytestmark = pytest.mark.timeout(60)

# Two jobs that would go on for a minute; the second does not fit beside the first.
HARNESS = """
import sys
from pathlib import Path
from launch import Job, LocalLauncher
folder = Path(sys.argv[1])
with LocalLauncher(slots=2) as launcher:
    jobs = [
        Job(
            name=name,
            folder=folder / name,
            world_size=2,
            entry="launch_entries:sleep",
            payload={"pids": str(folder / "pids")},
        )
        for name in ("first", "second")
    ]
    for exit in launcher.run(jobs):
        print(exit)
"""


@pytest.fixture
def harness(tmp_path):
    """A child process that runs HARNESS, once its ranks have started; and all processes that it has started."""
    pids_folder(tmp_path)
    # A place of its own for temporary folders, to see that none is left.
    (tmp_path / "tmp").mkdir()
    child = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(tmp_path)],
        env=os.environ | {"TMPDIR": str(tmp_path / "tmp")},
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        ranks = wait_for(tmp_path, 2)
        yield child, ranks | parents_of(ranks)
        child.kill()


def parents_of(pids):
    return {int(state_of(pid)[1]) for pid in pids}


def state_in(folder):
    return json.loads((folder / "exit.json").read_text())["state"]


def test_interrupt(harness, tmp_path):
    child, started = harness
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=10)
    assert_gone(started, seconds=0.5)
    assert said.endswith("KeyboardInterrupt\n")
    assert (state_in(tmp_path / "first"), state_in(tmp_path / "second")) == ("cancelled", "cancelled")
    assert not any((tmp_path / "tmp").iterdir())


def test_interrupt_is_quick(harness):
    child, started = harness
    start = time.monotonic()
    child.send_signal(signal.SIGINT)
    child.wait(10)
    assert_gone(started)
    assert time.monotonic() - start < 2.0


def test_interrupt_while_the_agent_still_imports(tmp_path):
    (tmp_path / "slow.py").write_text(
        "import os, pathlib, time\n"
        f"pathlib.Path({str(pids_folder(tmp_path))!r}, str(os.getpid())).touch()\n"
        "time.sleep(60)\n"
    )
    script = HARNESS.replace("slots=2", "preload=['slow']")
    env = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ['PYTHONPATH']}"}
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], env=env, stderr=subprocess.PIPE, text=True
    ) as child:
        (agent,) = wait_for(tmp_path, 1)
        start = time.monotonic()
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=10)
        assert time.monotonic() - start < 2.0
    assert said.endswith("KeyboardInterrupt\n")
    assert_gone({agent}, seconds=0.5)
    assert state_in(tmp_path / "first") == "cancelled"


def test_killed_harness(harness, tmp_path):
    child, started = harness
    child.kill()
    child.wait(10)
    assert_gone(started)
    assert not any((tmp_path / "tmp").iterdir())


def test_killed_harness_and_agent(harness):
    child, started = harness
    (agent,) = {pid for pid in started if parents_of({pid}) == {child.pid}}
    os.kill(child.pid, signal.SIGSTOP)
    os.kill(agent, signal.SIGKILL)
    os.kill(child.pid, signal.SIGKILL)
    child.wait(10)
    assert_gone(started)


def test_loop_left_early(job, tmp_path):
    with LocalLauncher(slots=3) as launcher:
        jobs = [
            job("hello", name="quick", world_size=1),
            job("sleep", name="running"),
            job("sleep", name="waiting"),
        ]
        for exit in launcher.run(jobs):
            assert (exit.job, exit.state) == ("quick", State.DONE)
            started = wait_for(tmp_path, 3)
            break
        assert_gone(started, seconds=0.5)
        assert {name: state_in(tmp_path / name) for name in ("quick", "running", "waiting")} == {
            "quick": "done",
            "running": "cancelled",
            "waiting": "cancelled",
        }
        again = only(launcher.run([job("hello", name="again")]))
        assert again.state == State.DONE


def test_close_while_running_and_twice(job, tmp_path):
    launcher = LocalLauncher(slots=3)
    exits = launcher.run([job("hello", name="quick", world_size=1), job("sleep", name="running")])
    next(exits)
    started = wait_for(tmp_path, 3)
    launcher.close()
    launcher.close()
    assert_gone(started, seconds=0.5)
    assert state_in(tmp_path / "running") == "cancelled"
    assert list(exits) == []


def test_an_exception_on_start_ends_everything(job, tmp_path):
    def refuse(job):
        wait_for(tmp_path, 2)
        raise RuntimeError("no")

    with LocalLauncher() as launcher, pytest.raises(RuntimeError, match="no"):
        list(launcher.run([job("sleep")], on_start=refuse))
    assert_gone(recorded(tmp_path), seconds=0.5)
    assert state_in(tmp_path / "job") == "cancelled"


def test_killed_agent(job, tmp_path):
    """Its job is lost, the others go on under a new one."""
    with LocalLauncher(slots=2) as launcher:
        exits = []
        for exit in launcher.run([job("hello", name="before"), job("sleep", name="lost"), job("hello", name="after")]):
            exits.append(exit)
            if exit.job == "before":
                ranks = wait_for(tmp_path, 4) - {rank.pid for rank in exit.ranks}
                (agent,) = parents_of(ranks)
                os.kill(agent, signal.SIGKILL)
            if exit.job == "lost":
                assert_gone(ranks | {agent}, seconds=0.5)
    assert [(exit.job, exit.state) for exit in exits] == [
        ("before", State.DONE),
        ("lost", State.LOST),
        ("after", State.DONE),
    ]
    assert exits[1].error == f"the agent (process {agent}) that ran this job was lost: SIGKILL"
    assert {rank.pid for rank in exits[1].ranks} == ranks
    assert {(rank.code, rank.signal) for rank in exits[1].ranks} == {(None, None)}


def test_agents_that_keep_dying(job, tmp_path):
    """Ranks kill their agent: four agents are lost, then no more are started."""
    with LocalLauncher(slots=1) as launcher:
        exits = list(launcher.run([job("kill_the_agent", name=f"job{n}", world_size=1) for n in range(6)]))
    assert {exit.state for exit in exits} == {State.LOST}
    assert [exit.error.partition(":")[0] for exit in exits[4:]] == ["not started"] * 2


@pytest.mark.parametrize(("times", "state"), [(2, State.DONE), (9, State.LOST)])
def test_agents_that_are_killed_before_they_are_ready(job, tmp_path, times, state):
    """As for lack of memory, while they import what the ranks need."""
    (tmp_path / "heavy.py").write_text(
        "import os, pathlib, signal\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        f"if len(list(folder.glob('try*'))) < {times}:\n"
        "    (folder / f'try{os.getpid()}').touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    os.environ["PYTHONPATH"] += f":{tmp_path}"  # undone by the fixture that has set it
    with LocalLauncher(preload=["heavy"]) as launcher:
        exits = list(launcher.run([job("hello", world_size=1)]))
    assert [exit.state for exit in exits] == [state]
    assert state is State.DONE or exits[0].error == "not started: 4 agents were lost before it"


def test_a_stopped_agent_does_not_hold_up_the_end(job, tmp_path):
    launcher = LocalLauncher()
    exits = launcher.run([job("hello", name="quick", world_size=1), job("sleep", name="running", world_size=1)])
    next(exits)
    ranks = wait_for(tmp_path, 2)
    (agent,) = parents_of({pid for pid in ranks if state_of(pid) != ["gone"]})
    os.kill(agent, signal.SIGSTOP)
    start = time.monotonic()
    launcher.close()
    assert time.monotonic() - start < 2.0
    assert_gone(ranks | {agent})


def things_of(tmp_path, rank):
    return [Path(line) for line in (tmp_path / f"things{rank}").read_text().splitlines()]


def test_what_killed_ranks_have_made_is_gone(launcher, job, tmp_path):
    """Shared memory, a folder and a socket in it. What was in shared memory before, or is still used, stays."""
    name = f"dist_checks_test_{os.getpid()}"
    other = shared_memory.SharedMemory(name=name, create=True, size=4096)
    try:
        exit = only(launcher.run([job("leave_things", deadline=1.5)]))
        assert exit.state == State.TIMED_OUT
        made = [path for rank in (0, 1) for path in things_of(tmp_path, rank)]
        assert len(made) == 4
        assert [path for path in made if path.exists()] == []
        assert Path("/dev/shm", name).exists()
    finally:
        other.close()
        other.unlink()


def test_what_a_rank_has_made_that_was_killed_by_others_is_gone(launcher, job, tmp_path):
    exit = only(launcher.run([job("leave_things", payload={"dies": 1, "after": 2.5}, stall=10.0)]))
    assert (exit.state, exit.first_failed) == (State.FAILED, 1)
    assert [path for rank in (0, 1) for path in things_of(tmp_path, rank) if path.exists()] == []


def test_offspring_goes_with_its_rank(launcher, job, tmp_path):
    exit = only(launcher.run([job("with_offspring", world_size=1)]))
    assert exit.state == State.DONE
    started = recorded(tmp_path)
    assert len(started) == 3
    assert_gone(started)


def test_offspring_goes_with_its_agent(job, tmp_path):
    launcher = LocalLauncher()
    exits = launcher.run(
        [
            job("hello", name="quick", world_size=1),
            job("with_offspring", name="running", world_size=1, payload={"stay": True}),
        ]
    )
    next(exits)
    started = wait_for(tmp_path, 3)
    launcher.close()
    assert_gone(started, seconds=0.5)
