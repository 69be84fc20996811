"""One matrix in all six ways: reports with the same statuses, broken sets and digests, healthy and with a fault.

    python tests/cluster/six_ways.py FOLDER [matrix.toml]

Brings up a Slurm of four nodes (as root) and a Ray of three, one after the other, and takes them down. Runs are left in
FOLDER. Exit code 1 where two ways differ.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import raying
import ways
from clusters import MATRIX, report
from essence import essence, hosts

FAULT = ("--fault", "O22", "-k", "tp2+sp or dp_replicate4+tp2+sp or dp_replicate4")


def main() -> int:
    folder, matrix = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute() if sys.argv[2:] else MATRIX
    runs: dict[str, list[tuple[int, float]]] = {}

    def go(name: str, way: Callable[..., int]) -> None:
        runs[name] = []
        for what, words in (("healthy", ()), ("fault", FAULT)):
            began = time.monotonic()
            code = way(folder / what / name.replace(" ", "-"), words, matrix)
            runs[name].append((code, time.monotonic() - began))

    os.environ["RAY_AUTH_MODE"] = "disabled"
    go("local", ways.local)
    with ways.slurm():
        go("slurm outside", ways.outside)
        go("slurm inside", ways.inside)
    go("ray embedded", ways.embedded)
    with raying.cluster(3) as made:
        go("ray cluster", partial(ways.clustered, made))
        go("ray job", partial(ways.as_job, made))
    good = [_compare(folder / what, runs, index) for index, what in enumerate(("healthy", "fault"))]
    return 0 if all(good) else 1


def _compare(folder: Path, runs: dict[str, list[tuple[int, float]]], index: int) -> bool:
    """Prints a line for each way; False where one differs from the first."""
    first = None
    good = True
    for name, seen in runs.items():
        out = folder / name.replace(" ", "-")
        found = essence(out)
        first = first or found
        good &= found == first
        digest = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:12]
        nodes = sorted({host for names in hosts(out).values() for host in names})
        code, seconds = seen[index]
        print(
            f"{name:14} exit code {code}  {len(found['statuses'])} rungs  {digest}  "
            f"{'same' if found == first else 'OTHER'}  {seconds:5.0f} s  {len(nodes)} nodes  {report(out)['sentence']}",
            flush=True,
        )
    return good


if __name__ == "__main__":
    sys.exit(main())
