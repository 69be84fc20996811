"""Each check passes where nothing is wrong, sees how a rung was started and ended, and never lets NaN through."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judging_cases import ACCUM, ALL, DP, ORDER, SHARD, SP, TP, judged, of, rewrite, sees
from tampering import HEALTHY, Tamper
from tiny_world import SHAPES, World, make_run, rung, write_plan

from dist_checks.axes import Setting
from dist_checks.extent import Extent
from dist_checks.judging.checks import CHECKS
from dist_checks.judging.judge import judge
from dist_checks.judging.verdict import Blamed, Status
from dist_checks.rung import Role
from dist_checks.trace import Kind

# Quiet where nothing is wrong


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("setting", [TP, DP, SHARD, SP, ACCUM, ALL, {"tp": 2, "precision": "bf16"}], ids=str)
def test_a_healthy_rung_passes_every_check(tmp_path: Path, setting: Mapping[str, Any], optimizer: str) -> None:
    judgement, id = judged(tmp_path, setting, HEALTHY, optimizer=optimizer)
    for name, _ in CHECKS:
        found = of(judgement, id, name)
        assert found, name
        assert {finding.status for finding in found} <= {Status.PASS, Status.SKIP}, found
    assert judgement.verdict.sentence == "PASS 1 rung equal to one device"
    passed = {finding.check for finding in judgement.findings if finding.status is Status.PASS and finding.rung == id}
    assert passed >= {"launch", "engaged", "samples", "initial_weights", "shards", "schedule", "forward", "loss"}
    assert passed >= {"gradients", "contributions", "grad_norm", "updates", "completes"}
    for finding in judgement.findings:
        if finding.status is Status.PASS and finding.allowed is not None and finding.check != "launch":
            assert finding.observed is not None
            assert finding.observed <= finding.allowed


def test_a_twin_that_differs_is_a_race(tmp_path: Path) -> None:
    class Races(Tamper):
        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x * (1 + 1e-3 * (step == 2))

    rungs = [rung(), rung(TP), rung(TP, id="tp2@again", role=Role.TWIN, twin_of="tp2")]
    judgement = judge(make_run(tmp_path / "run", rungs, {"tp2@again": Races()}))
    (found,) = of(judgement, "tp2@again", "twins")
    assert (found.status, found.blames, found.step, found.tensor) == (Status.FAIL, Blamed.RACE, 2, "norm.weight")
    assert judgement.verdict.blamed is Blamed.RACE
    assert judgement.verdict.sentence.startswith("FAIL broken: a race (tp2 differs from its own rerun at step 2")


def test_only_a_cold_twin_that_differs_is_the_launcher(tmp_path: Path) -> None:
    class Differs(Tamper):
        def moved(self, step: int, rank: int, name: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
            return after * (1 + 2**-52)

    single = rung()
    again, cold = (
        rung(id=f"single@{name}", role=Role.TWIN, twin_of="single", cold=name == "cold") for name in ("again", "cold")
    )
    judgement = judge(make_run(tmp_path / "run", [single, again, cold, rung(TP)], {"single@cold": Differs()}))
    assert of(judgement, "single@again", "twins")[0].status is Status.PASS
    assert of(judgement, "single@cold", "twins")[0].blames is Blamed.LAUNCHER
    assert judgement.verdict.blamed is Blamed.LAUNCHER


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rank, header: header | {"world_size": 2}, "ranks 0, 1 and 2 started in a world of 2"),
        (lambda rank, header: header | {"device": "cuda:0"}, "ranks 0, 1 and 2 share cuda:0"),
        (lambda rank, header: header | {"coordinates": {"dp_replicate": 0}}, "rank 1 is at 0 on dp_replicate"),
    ],
    ids=["several worlds", "one device", "coordinates"],
)
def test_launch(tmp_path: Path, change: Callable[..., dict[str, Any]], words: str) -> None:
    class Header(Tamper):
        def header(self, rank: int, header: dict[str, Any]) -> dict[str, Any]:
            return change(rank, header)

    found = sees(tmp_path, "launch", DP, Header())
    assert words in found.message
    assert found.blames is Blamed.LAUNCHER
    assert judge(tmp_path / "run").verdict.blamed is Blamed.LAUNCHER


def test_ranks_that_each_see_one_device_may_all_call_it_the_same(tmp_path: Path) -> None:
    class Header(Tamper):
        def header(self, rank: int, header: dict[str, Any]) -> dict[str, Any]:
            return header | {"device": "cuda:0", "device_id": f"GPU-{rank}"}

    judgement, id = judged(tmp_path, DP, Header())
    assert of(judgement, id, "launch")[0].status is Status.PASS


def test_a_host_whose_ranks_think_they_are_alone(tmp_path: Path) -> None:
    """k2-fsa/icefall#1616: on one node the sampler does not see the others."""

    class Alone(Tamper):
        def header(self, rank: int, header: dict[str, Any]) -> dict[str, Any]:
            return header | {"host": f"n{rank // 2}"}

        def ids(self, step: int, rank: int, ids: list[int]) -> list[int]:
            return ORDER[step][: len(ids)] if rank >= 2 else ids

    rungs = [rung(), rung({"dp_replicate": 4}), rung({"dp_shard": 4})]
    judgement = judge(make_run(tmp_path / "run", rungs, {each.id: Alone() for each in rungs[1:]}))
    assert of(judgement, "dp_shard4", "samples")[0].hosts == ("n1",)
    assert judgement.verdict.blamed is Blamed.HOST
    assert judgement.verdict.sentence == ("FAIL broken: host n1 (wherever it takes part: dp_replicate4, dp_shard4)")


class _Off(Tamper):
    """Says that it is on, and is not."""

    def ids(self, step: int, rank: int, ids: list[int]) -> list[int]:
        return ORDER[step]

    def extent(self, rank: int, kind: Kind, name: str, extent: Extent) -> Extent:
        return Extent.full(extent.shape)

    def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
        return event | {"micro_batches": [event["ids"]]}


@pytest.mark.parametrize("setting", [TP, DP, SHARD, ACCUM], ids=str)
def test_engaged(tmp_path: Path, setting: Mapping[str, Any]) -> None:
    found = sees(tmp_path, "engaged", setting, _Off())
    assert found.message.startswith(f"{next(iter(setting))} is not on")


def test_engaged_looks_at_matrix_products(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [rung(), rung({"precision": "bf16"})])
    for events in (run / "rungs" / "bf16").glob("*.jsonl"):
        rewrite(events, '"matmul_dtypes":["bfloat16"]', '"matmul_dtypes":["float32"]')
    (found,) = of(judge(run), "bf16", "engaged")
    assert found.status is Status.FAIL
    assert "float32, not in bfloat16" in found.message


@pytest.mark.parametrize(
    ("state", "status", "words"),
    [
        ("failed", Status.FAIL, "rank 1, exit code 1 failed in step 4: ValueError: no"),
        ("timed_out", Status.FAIL, "did not end in time"),
        ("lost", Status.INCONCLUSIVE, "the job was lost"),
        ("cancelled", Status.INCONCLUSIVE, "the job was cancelled"),
        ("exploded", Status.INCONCLUSIVE, "not known: 'exploded'"),
    ],
)
def test_completes(tmp_path: Path, state: str, status: Status, words: str) -> None:
    run = tmp_path / "run"
    write_plan(run, [rung(), rung(TP)])
    World(rung(), run / "rungs" / "single").run()
    world = World(rung(TP), run / "rungs" / "tp2")
    world.run()
    bad = {"rank": 1, "code": 1, "signal": None, "error": "Traceback\n  x\nValueError: no\n"}
    world.exit(state=state, first_failed=1, ranks=[{"rank": 0}, bad])
    (found,) = of(judge(run), "tp2", "completes")
    assert found.status is status
    assert words in found.message


def test_completes_counts_steps(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_plan(run, [rung(steps=4), rung(TP, steps=4)])
    World(rung(steps=4), run / "rungs" / "single").run()
    World(rung(TP, steps=3), run / "rungs" / "tp2").run()
    (found,) = of(judge(run), "tp2", "completes")
    assert (found.status, found.message) == (Status.FAIL, "all ranks ended well after 3 of 4 steps")


# NaN is never within tolerance


@pytest.mark.parametrize("method", ["gradient", "moved", "output", "norm_used", "event", "applied", "initial"])
@pytest.mark.parametrize("setting", [DP, {"tp": 2, "precision": "bf16"}], ids=str)
def test_nan_anywhere_is_never_a_pass(tmp_path: Path, method: str, setting: Mapping[str, Any]) -> None:
    class Nan(Tamper):
        pass

    def poison(self: Tamper, *args: Any) -> Any:
        last = args[-1]
        if isinstance(last, dict):
            return last | {"loss_sum": math.nan}
        return last * math.nan

    setattr(Nan, method, poison)
    with np.errstate(all="ignore"):
        judgement, id = judged(tmp_path, setting, Nan())
    result = next(each for each in judgement.rungs if each.rung.id == id)
    assert result.status is not Status.PASS
    assert judgement.verdict.status is not Status.PASS
    assert not any("the check broke" in finding.message for finding in judgement.findings), judgement.findings


def test_the_tiny_world_shards_what_it_says() -> None:
    world = World(rung({"dp_shard": 2, "tp": 2}), Path("unused"))
    for name in SHAPES:
        boxes = {world.extent(rank, Kind.WEIGHT, name).boxes[0] for rank in range(4)}
        assert len(boxes) == (4 if name != "norm.weight" else 2)
    assert Setting({"tp": 2}).name == "tp2"


@pytest.mark.parametrize(
    ("rose", "status", "message"),
    [
        ({}, Status.PASS, "no error counted of 8 devices"),
        (
            {"GPU 1: ecc_errors volatile sram_correctable": [0, 3], "GPU 1: link 0 CRC Errors": [0, 1]},
            Status.PASS,
            "nothing that was not put right: n1 GPU 1: ecc_errors volatile sram_correctable rose from 0 to 3; "
            "n1 GPU 1: link 0 CRC Errors rose from 0 to 1",
        ),
        ({"XID 31 of 0000:3b:00": [0, 1]}, Status.PASS, "n1 XID 31 of 0000:3b:00 rose from 0 to 1"),
        (
            {"GPU 3: ecc_errors volatile dram_uncorrectable": [0, 2]},
            Status.FAIL,
            "n1 GPU 3: ecc_errors volatile dram_uncorrectable rose from 0 to 2",
        ),
        ({"XID 79 of 0000:3b:00": [0, 1]}, Status.FAIL, "n1 XID 79 of 0000:3b:00 rose from 0 to 1"),
    ],
)
def test_errors_that_devices_counted(tmp_path: Path, rose: dict[str, list[int]], status: Status, message: str) -> None:
    run = make_run(tmp_path / "run", [rung(), rung(DP)], {})
    exit = run / "rungs" / "dp_replicate3" / "exit.json"
    counters = [{"host": "n1", "devices": 8, "rose": rose}]
    exit.write_text(json.dumps({**json.loads(exit.read_text()), "counters": counters}))
    judgement = judge(run)
    (found,) = of(judgement, "dp_replicate3", "devices")
    assert found.status is status
    assert found.message.endswith(message)
    if status is Status.FAIL:
        assert (found.blames, found.hosts, judgement.verdict.blamed) == (Blamed.HOST, ("n1",), Blamed.HOST)
        assert judgement.verdict.sentence == f"FAIL broken: host n1 ({message}, in dp_replicate3)"
