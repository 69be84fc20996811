"""A disk that is full: ranks cannot say why they fail, their agent does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RUN = """
import sys
from pathlib import Path
from launch import Job, LocalLauncher
folder = Path(sys.argv[1])
with LocalLauncher(slots=2) as launcher:
    payload = {"folder": sys.argv[1]}
    job = Job(name="job", folder=folder / "job", world_size=1, entry="launch_entries:fill", payload=payload)
    for exit in launcher.run([job]):
        print(exit.state, exit.ranks[0].code, exit.error.splitlines()[0])
"""


@pytest.mark.timeout(120)
def test_a_rank_that_has_no_room_for_its_last_words(tmp_path: Path) -> None:
    """Its trace, its log and the scratch folder of its agent are on one small disk."""
    script = f"mount -t tmpfs -o size=256k tmpfs {tmp_path} && exec {sys.executable} -c '{RUN}' {tmp_path}"
    path = os.pathsep.join((str(HERE), str(HERE.parents[1])))
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    ended = subprocess.run(
        ["unshare", "--mount", "bash", "-c", script],
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    said = "failed 1 rank 0 of 1 failed first"
    assert ended.stdout.startswith(said), ended.stdout + ended.stderr
    assert "OSError: [Errno 28] No space left on device" in ended.stdout
