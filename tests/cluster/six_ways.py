"""One matrix in all six ways: reports with the same statuses, broken sets and digests, healthy and with a fault.

    python tests/cluster/six_ways.py FOLDER [matrix.toml]

Brings up a Slurm of four nodes (as root) and a Ray of three, one after the other, and takes them down. Runs are left in
FOLDER; called again, it goes on with what is missing there. Exit code 1 where two ways differ.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import raying
import ways
from clusters import MATRIX, report
from essence import essence, hosts

WORDS: dict[str, Sequence[str]] = {
    "healthy": (),
    "fault": ("--fault", "O22", "-k", "tp2+sp or dp_replicate4+tp2+sp or dp_replicate4"),
}


def main() -> int:
    folder, matrix = Path(sys.argv[1]).absolute(), Path(sys.argv[2]).absolute() if sys.argv[2:] else MATRIX
    os.environ["RAY_AUTH_MODE"] = "disabled"
    six = Six(folder, matrix)
    six.go("local", ways.local)
    if six.missing("slurm outside", "slurm inside"):
        with ways.slurm():
            six.go("slurm outside", ways.outside)
            six.go("slurm inside", ways.inside)
    six.go("ray embedded", ways.embedded)
    if six.missing("ray cluster", "ray job"):
        with raying.cluster(3) as made:
            six.go("ray cluster", partial(ways.clustered, made))
            six.go("ray job", partial(ways.as_job, made))
    good = [_compare(folder / what, six.seen[what]) for what in WORDS]
    return 0 if all(good) else 1


class Six:
    """Exit code and seconds of each run, kept in a file."""

    def __init__(self, folder: Path, matrix: Path) -> None:
        self._folder, self._matrix, self._kept = folder, matrix, folder / "seen.json"
        self.seen: dict[str, dict[str, tuple[int, float]]] = {what: {} for what in WORDS}
        if self._kept.exists():
            self.seen = json.loads(self._kept.read_text())

    def missing(self, *names: str) -> bool:
        outs = (self._folder / what / name.replace(" ", "-") for what in WORDS for name in names)
        return not all((out / "report.json").exists() for out in outs)

    def go(self, name: str, way: Callable[..., int]) -> None:
        for what, words in WORDS.items():
            out = self._folder / what / name.replace(" ", "-")
            if not (out / "report.json").exists():
                shutil.rmtree(out, ignore_errors=True)
                out.parent.mkdir(parents=True, exist_ok=True)
                began = time.monotonic()
                code = way(out, words, self._matrix)
                self.seen[what][name] = code, time.monotonic() - began
                self._kept.write_text(json.dumps(self.seen))
                assert code in (0, 1), f"{name}, {what}: exit code {code}"


def _compare(folder: Path, runs: Mapping[str, Sequence[float]]) -> bool:
    """Prints a line for each way; False where one differs from the first."""
    first = None
    good = True
    for name, (code, seconds) in runs.items():
        out = folder / name.replace(" ", "-")
        found = essence(out)
        first = first or found
        good &= found == first
        digest = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:12]
        nodes = {host for names in hosts(out).values() for host in names}
        print(
            f"{name:14} exit code {code}  {len(found['statuses'])} rungs  {digest}  "
            f"{'same' if found == first else 'OTHER'}  {seconds:5.0f} s  {len(nodes)} nodes  {report(out)['sentence']}",
            flush=True,
        )
    return good


if __name__ == "__main__":
    sys.exit(main())
