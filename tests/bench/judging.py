"""How fast is the judge? A synthetic trace of many ranks, written once, then read, put together and judged.

``python tests/bench/judging.py [ranks] [tensors] [steps]``: by default 1,000 ranks, 300 tensors, 10 steps.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np

from dist_checks.axes import Setting
from dist_checks.extent import Extent, chunk
from dist_checks.judging.judge import report
from dist_checks.judging.reading import RECORD, read
from dist_checks.judging.seen import Seen
from dist_checks.rung import Role, Rung
from dist_checks.trace import SCHEMA, Chain, Kind, digests_path, events_path


def write_rank(folder: Path, rank: int, ranks: int, tensors: int, steps: int, kind: Kind) -> None:
    """A gradient (or weight) of ``ranks`` x 8 rows, one shard of it on each rank."""
    folder.mkdir(parents=True, exist_ok=True)
    start, length = chunk(ranks * 8, ranks, rank)
    extent = Extent.box((ranks * 8, 64), (start, 0), (length, 64))
    coordinates = {"dp_replicate": 0, "dp_shard": rank, "tp": 0}
    lines: list[dict[str, object]] = [
        {"event": "header", "schema": SCHEMA, "rank": rank, "world_size": ranks, "host": f"n{rank // 8}", "pid": rank}
        | {"device": f"cuda:{rank % 8}", "coordinates": coordinates, "optimizer": [], "blocks": []}
    ]
    lines += [
        {"event": "entry", "index": i, "kind": kind, "name": f"w{i}", "dtype": "float64", "extent": extent.to_json()}
        for i in range(tensors)
    ]
    for step in range(steps):
        event = {"event": "step", "step": step, "epoch": 0, "ids": [step * ranks + rank], "loss_sum": 1.0, "targets": 1}
        lines.append(event | {"learning_rates": [0.1], "micro_batches": [[step * ranks + rank]], "rng": f"{rank}"})
    lines.append({"event": "end"})
    path = events_path(folder, rank)
    chain = Chain(path)
    path.write_text("".join(chain.sign(json.dumps(line)) for line in lines))
    records = np.zeros(tensors * steps, RECORD)
    records["step"], records["entry"] = np.divmod(np.arange(len(records)), tensors)
    records["item"], records["elements"] = -1, length * 64
    noise = np.random.default_rng(rank)
    records["fingerprint"] = noise.integers(0, 2**63, len(records))
    records["sketch"] = noise.normal(size=(len(records), 64))
    records["sum_squares"] = np.square(records["sketch"]).sum(1)
    size = RECORD.itemsize
    data = records.tobytes()
    records["checksum"] = [zlib.crc32(data[i * size : (i + 1) * size - 8]) for i in range(len(records))]
    records.tofile(digests_path(folder, rank))


def main(ranks: int = 1000, tensors: int = 300, steps: int = 10) -> None:
    single = Rung(id="single", role=Role.SINGLE, setting=Setting(), precision="fp64", seed=0, steps=steps)
    wide = Rung(
        id="wide",
        role=Role.RUNG,
        setting=Setting({"dp_shard": ranks}),
        precision="fp64",
        seed=0,
        steps=steps,
        reference="single",
        truth="single",
    )
    with tempfile.TemporaryDirectory() as temporary:
        run = Path(temporary)
        (run / "plan.json").write_text(json.dumps({"schema": 1, "rungs": [single.to_json(), wide.to_json()]}))
        for rank in range(ranks):
            write_rank(run / "rungs" / "wide", rank, ranks, tensors, steps, Kind.GRADIENT)
        write_rank(run / "rungs" / "single", 0, 1, tensors, steps, Kind.GRADIENT)
        started = time.perf_counter()
        trace = read(run / "rungs" / "wide", ranks)
        middle = time.perf_counter()
        full = Seen(wide, trace).full(Kind.GRADIENT)
        assert full.complete.all()
        done = time.perf_counter()
        print(f"{ranks} ranks x {tensors} tensors x {steps} steps = {ranks * tensors * steps:,} digests")
        print(f"read and checksummed {middle - started:6.1f} s")
        print(f"full tensors         {done - middle:6.1f} s")
        report(run)
        print(f"judged, from files   {time.perf_counter() - done:6.1f} s")
        print(f"largest memory       {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:6.2f} GiB")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
