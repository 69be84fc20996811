"""Several harnesses at work on one machine at the same time do not meet, and leave nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(240)

# Jobs of the same names, with the same temporary folder: only the folders of the jobs are their own.
HARNESS = """
import sys
from pathlib import Path
from launch import Job, LocalLauncher
folder = Path(sys.argv[1])
with LocalLauncher(slots=4, preload=["torch.distributed"]) as launcher:
    jobs = [
        Job(
            name=f"job{number}",
            folder=folder / f"job{number}",
            world_size=2 + number % 2,
            entry="launch_entries:all_reduce",
            payload={"pids": str(folder / "pids")},
            cold=number == 3,
        )
        for number in range(4)
    ]
    for exit in launcher.run(jobs):
        print(exit.job, exit.state, *(exit.ranks[0].log.read_text().split(" by ")[:1]))
"""


def test_harnesses_side_by_side(tmp_path):
    temporary, shared = tmp_path / "tmp", set(os.listdir("/dev/shm"))
    temporary.mkdir()
    env = os.environ | {"TMPDIR": str(temporary)}
    started = []
    for number in range(3):
        (tmp_path / str(number) / "pids").mkdir(parents=True)
        command = [sys.executable, "-c", HARNESS, str(tmp_path / str(number))]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    for child in started:
        said, _ = child.communicate(timeout=200)
        assert child.returncode == 0
        assert sorted(said.splitlines()) == [
            "job0 done sum [3.0, 3.0, 3.0]",
            "job1 done sum [6.0, 6.0, 6.0]",
            "job2 done sum [3.0, 3.0, 3.0]",
            "job3 done sum [6.0, 6.0, 6.0]",
        ]
    assert list(temporary.iterdir()) == []
    assert [name for name in set(os.listdir("/dev/shm")) - shared if "torch" in name or "gloo" in name] == []
    assert not [socket for socket in Path("/proc/net/unix").read_text().splitlines() if str(tmp_path) in socket]
