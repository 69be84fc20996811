"""What recording every collective costs, as a ratio of step time: the same rungs with the flight recorder on and off.

``python tests/bench/bench_collectives.py [STEPS] [REPEATS]``
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from dist_checks.axes import Axis, Setting
from dist_checks.jobs import ENTRY, FLIGHT_RECORDS
from dist_checks.rung import Role, Rung
from dist_checks.session import PRELOAD
from launch import Job, LocalLauncher, State

SETTINGS = {
    "dp_replicate2": {Axis.DP_REPLICATE: 2},
    "tp2+sp": {Axis.TP: 2, Axis.SP: True},
    "dp_shard2": {Axis.DP_SHARD: 2},
}


def seconds(launcher: LocalLauncher, folder: Path, name: str, steps: int, records: str) -> float:
    """Of one rung, without what a rung of one step takes."""
    taken = []
    for count in (1, 1 + steps):
        rung = Rung(
            id=name,
            role=Role.RUNG,
            setting=Setting(SETTINGS[name]),
            precision="fp64",
            seed=0,
            steps=count,
            reference="s",
        )
        own = folder / f"{name}-{records}-{count}"
        payload = {"folder": str(own), "recipe": "gpt", "options": {}, "train": {}, "rung": rung.to_json()}
        job = Job(
            name=own.name, folder=own, world_size=2, entry=ENTRY, payload=payload, env={"TORCH_FR_BUFFER_SIZE": records}
        )
        (exit,) = launcher.run([job])
        assert exit.state is State.DONE, exit.error
        taken.append(exit.seconds)
    return taken[1] - taken[0]


def cpu(payload: dict[str, str]) -> None:
    """On both ranks: CPU time of the main thread for each collective, to call it and to write it down."""
    import time

    import torch
    import torch.distributed as dist

    from dist_checks.probe.ledger import Ledger

    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=os.environ["LAUNCH_INIT_METHOD"], rank=rank, world_size=2)
    ledger, x, calls = Ledger(Path(payload["folder"]), rank), torch.ones(1000), 4000
    ledger.started()
    start = time.thread_time()
    for _ in range(calls // 40):
        for _ in range(40):
            dist.all_reduce(x)
        ledger.step()
    ledger.end()
    if rank == 0:
        print((time.thread_time() - start) / calls)


def called(launcher: LocalLauncher, folder: Path, records: str) -> float:
    """Seconds of CPU for each collective."""
    job = Job(
        name="cpu",
        folder=folder,
        world_size=2,
        entry=f"{Path(__file__).stem}:cpu",
        payload={"folder": str(folder)},
        env={"TORCH_FR_BUFFER_SIZE": records},
    )
    (exit,) = launcher.run([job])
    assert exit.state is State.DONE, exit.error
    return float(exit.ranks[0].log.read_text())


def main(steps: int = 40, repeats: int = 3) -> None:
    with LocalLauncher(slots=2, preload=PRELOAD) as launcher, tempfile.TemporaryDirectory() as folder:
        extra = statistics.median(
            called(launcher, Path(folder, f"cpu{n}"), FLIGHT_RECORDS) - called(launcher, Path(folder, f"cpu{n}-0"), "0")
            for n in range(3)
        )
        print(f"{1e6 * extra:.0f} us of CPU to record a collective and to write it down", flush=True)
        for name in SETTINGS if steps else ():
            pairs = []
            for repeat in range(repeats):
                on, off = (seconds(launcher, Path(folder, str(repeat)), name, steps, r) for r in (FLIGHT_RECORDS, "0"))
                pairs.append((on, off))
            ratio = statistics.median(on / off for on, off in pairs)
            step = statistics.median(off for _, off in pairs) / steps
            path = next(Path(folder).glob(f"0/{name}-{FLIGHT_RECORDS}-{1 + steps}/rank-00000.collectives"))
            events = [json.loads(line) for line in path.read_text().splitlines()]
            calls = sum(len(event["records"]) for event in events if event["event"] == "collectives")
            size = path.stat().st_size
            print(
                f"{name:<14} {1000 * step:6.1f} ms a step, {calls / (steps + 1):5.1f} collectives a step; "
                f"recorded: {ratio:.3f} x by the clock, "
                f"{1 + extra * calls / (steps + 1) / step:.4f} x by the CPU time of each, {size / calls:.0f} bytes each"
            )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
