"""How long it takes until the first collective is done: ranks forked by `launch` against ranks started by torchrun.

    python tests/bench/bench_start.py

Both are measured in turn in one run, on one machine; what counts is the ratio.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from launch import Job, LocalLauncher, State

WORLDS = (2, 4)
REPEATS = 5
PRELOAD = ("torch.distributed",)


def first_collective(payload: dict[str, Any]) -> None:
    """On every rank: notes when the first collective is done."""
    import torch
    import torch.distributed as dist

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    method = os.environ.get("LAUNCH_INIT_METHOD", "env://")
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world_size)
    dist.all_reduce(torch.ones(1))
    Path(payload["done"], str(rank)).write_text(str(time.time()))
    dist.destroy_process_group()


def last(done: Path, world_size: int) -> float:
    """Unix time when the last rank was done."""
    moments = [float(file.read_text()) for file in done.iterdir()]
    assert len(moments) == world_size, moments
    return max(moments)


def warm(launcher: LocalLauncher, folder: Path, world_size: int) -> float:
    """Seconds, the server being there already."""
    done = folder / "done"
    done.mkdir(parents=True)
    job = Job(
        name="start",
        folder=folder,
        world_size=world_size,
        entry="bench_start:first_collective",
        payload={"done": str(done)},
    )
    start = time.time()
    (exit,) = launcher.run([job])
    assert exit.state == State.DONE, exit.error
    return last(done, world_size) - start


def torchrun(folder: Path, world_size: int) -> float:
    """Seconds, everything being new."""
    folder.mkdir(parents=True)
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}", __file__, str(folder)]
    start = time.time()
    subprocess.run([sys.executable, *command], check=True, stderr=subprocess.DEVNULL)
    return last(folder, world_size) - start


def main() -> None:
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    with tempfile.TemporaryDirectory() as temporary, LocalLauncher(slots=max(WORLDS), preload=PRELOAD) as launcher:
        folder = Path(temporary)
        start = time.time()
        warm(launcher, folder / "server", 1)
        print(f"first job, with the start of the server: {time.time() - start:.2f} s")
        print(f"\n{'world':>5} {'torchrun s':>11} {'forked s':>9} {'ratio':>6}   median (least to most) of {REPEATS}")
        for world_size in WORLDS:
            forked, new = [], []
            for repeat in range(REPEATS):
                forked.append(warm(launcher, folder / f"warm-{world_size}-{repeat}", world_size))
                new.append(torchrun(folder / f"new-{world_size}-{repeat}", world_size))
            ratio = statistics.median(new) / statistics.median(forked)
            print(
                f"{world_size:5} {statistics.median(new):11.2f} {statistics.median(forked):9.3f} {ratio:6.0f}"
                f"   torchrun {min(new):.2f} to {max(new):.2f}, forked {min(forked):.3f} to {max(forked):.3f}"
            )


if __name__ == "__main__":
    if "RANK" in os.environ:
        first_collective({"done": sys.argv[1]})
    else:
        main()
