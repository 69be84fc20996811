"""What a rank finds: a process as good as new, its environment, and what was preloaded."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from launch_watching import only

from launch import LocalLauncher, State

pytestmark = pytest.mark.timeout(60)


def lines(exit, rank=0):
    return exit.ranks[rank].log.read_text().splitlines()


def test_environment_of_torchrun(launcher, job):
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "OMP_NUM_THREADS"]
    jobs = [
        job(
            "environment",
            name=f"job{number}",
            payload={"names": [*names, "MASTER_PORT", "LAUNCH_INIT_METHOD", "MINE"]},
            env=env,
        )
        for number, env in enumerate(({"MINE": "a"}, {}))
    ]
    first, second = sorted(launcher.run(jobs), key=lambda exit: exit.job)
    fixed = [line for line in lines(first, 1) if line.partition("=")[0] in names]
    assert fixed == [
        "RANK=1",
        "LOCAL_RANK=1",
        "WORLD_SIZE=2",
        "LOCAL_WORLD_SIZE=2",
        "GROUP_RANK=0",
        "MASTER_ADDR=127.0.0.1",
        "OMP_NUM_THREADS=1",
    ]
    port, store, mine = lines(first)[-3:]
    assert 1024 < int(port.partition("=")[2]) < 65536
    assert store.startswith("LAUNCH_INIT_METHOD=file:///")
    assert mine == "MINE=a"
    assert lines(first, 1)[-3:-1] == [port, store]
    assert lines(second)[-1] == "MINE=None"
    assert lines(second)[-2] != store


def test_job_json_hides_environment_and_fault(launcher, job, tmp_path):
    given = job("hello", payload={"fault": "tp-scale", "steps": 3}, env={"FAULT": "tp-scale"})
    only(launcher.run([given]))
    text = (tmp_path / "job" / "job.json").read_text()
    assert "fault" not in text.lower()
    assert json.loads(text)["payload"] == {"pids": given.payload["pids"], "steps": 3}
    assert {file.name for file in (tmp_path / "job").iterdir()} == {
        *("job.json", "exit.json", "rank-00000.log", "rank-00001.log"),
    }


def test_every_rank_is_a_new_process(job):
    """The module that holds the entry is preloaded; what ranks do to it, and random numbers, stay with them."""
    with LocalLauncher(slots=4, preload=["launch_entries"]) as launcher:
        exits = list(launcher.run([job("surroundings", name=name) for name in ("one", "two")]))
    assert {exit.state for exit in exits} == {State.DONE}
    for exit in exits:
        for rank in (0, 1):
            assert lines(exit, rank)[0] == f"state [{rank}]"
            assert lines(exit, rank)[2:] == [
                "stdin  b''",
                "leader True faulthandler True",
                "handlers 0 0",
                "files ['0', '1', '2']",
                "torch False",
            ]
    assert len({lines(exit, rank)[1] for exit in exits for rank in (0, 1)}) == 4
    assert len({rank.pid for exit in exits for rank in exit.ranks}) == 4


def test_variables_that_are_read_at_import_start_a_new_python(launcher, job):
    payload = {"names": ["PYTHONHASHSEED"]}
    exit = only(launcher.run([job("environment", payload=payload, env={"PYTHONHASHSEED": "7"})]))
    assert lines(exit) == ["PYTHONHASHSEED=7"]
    assert exit.notes == ("ranks were started in new processes, not forked: PYTHONHASHSEED is read at import",)


def test_ranks_import_what_the_launching_script_could(tmp_path):
    """A module beside the script, whatever the folder it is run from holds: here, a launch.py."""
    scripts, elsewhere = tmp_path / "scripts", tmp_path / "elsewhere"
    for folder in (scripts, elsewhere):
        folder.mkdir()
    (elsewhere / "launch.py").write_text("raise ImportError('the wrong one')")
    (elsewhere / "here.py").write_text("")
    (scripts / "beside.py").write_text("def main(payload):\n    import here\n")
    (scripts / "script.py").write_text(
        "import pathlib, sys\n"
        "from launch import Job, LocalLauncher\n"
        "with LocalLauncher() as launcher:\n"
        "    for cold in (False, True):\n"
        "        job = Job(name='job', folder=pathlib.Path(sys.argv[1]), world_size=1, entry='beside:main',\n"
        "                  env={'PYTHONHASHSEED': '1'} if cold else {})\n"
        "        print(*(exit.error or 'fine' for exit in launcher.run([job])))\n"
    )
    command = [sys.executable, str(scripts / "script.py"), str(tmp_path / "job")]
    assert (
        subprocess.run(command, check=True, cwd=elsewhere, stdout=subprocess.PIPE, text=True).stdout == "fine\nfine\n"
    )


def test_no_fork_beside_a_device_context(job, tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text(
        "class cuda:\n    is_initialized = staticmethod(lambda: True)\ndef set_num_threads(count): pass\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    with LocalLauncher(preload=["torch"]) as launcher:
        exit = only(launcher.run([job("hello")]))
    assert exit.state == State.DONE
    assert exit.notes == ("ranks were started in new processes, not forked: torch.cuda is initialized",)


def test_a_fork_server_with_threads_says_so(job, tmp_path, monkeypatch):
    (tmp_path / "busy.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    with LocalLauncher(preload=["busy"]) as launcher:
        exit = only(launcher.run([job("hello")]))
    assert exit.state == State.DONE
    assert [note.partition(":")[0] for note in exit.notes] == ["the fork server has 2 threads"]
