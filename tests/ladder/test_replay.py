"""Steps that are saved: one that jumps goes away without its sample, and backward operations are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ladders import Ladder, findings

from dist_checks.judging.replayed import sentences
from dist_checks.worker.faults.sample_weighs_much import SAMPLE
from launch.base import Job, State
from launch.local import LocalLauncher

ENTRY = "dist_checks.worker.alone.replaying:main"


def replay(launcher: LocalLauncher, bundle: Path, folder: Path, fault: str, without: list[int]) -> list[str]:
    payload: dict[str, Any] = {"bundle": str(bundle), "folder": str(folder), "without": without, "fault": fault}
    folder.mkdir()
    (exit,) = launcher.run([Job(name="replay", folder=folder, world_size=1, entry=ENTRY, payload=payload)])
    assert exit.state is State.DONE, exit.error
    return sentences(json.loads((folder / "answer.json").read_text(encoding="utf-8")))


def test_a_step_that_jumps_is_saved_and_does_not_without_its_sample(
    ladder: Ladder, launcher: LocalLauncher, tmp_path: Path
) -> None:
    many = {"layers": 1, "samples": 560}  # nineteen steps an epoch: what one of them does is not usual
    single = {"learn": 50, "overfit": 0}
    outcome = ladder({}, fault="sample_weighs_much", single=single, options=many)
    [found] = findings(outcome.report, "spikes", "learn")
    assert "(spikes of learn)" in outcome.report["sentence"]
    assert f"{SAMPLE}" in found["message"].split("samples ")[1].replace(";", ",").split(", ")
    bundle = outcome.folder / "rungs/learn/replay.pt"
    assert f"dist-checks replay {bundle} says which sample" in found["message"]

    fault = "sample_weighs_much"
    same, jump, each, then = replay(launcher, bundle, tmp_path / "all", fault, [])
    assert same.startswith(f"step {found['step']} of learn reproduces, bit for bit")
    assert "in the middle of the 20 steps before it was" in jump
    assert each.startswith(f"by themselves the samples with the highest loss are {SAMPLE} (")
    assert then == f"next: the same with --without-sample {SAMPLE}"
    *_, without = replay(launcher, bundle, tmp_path / "without", fault, [SAMPLE])
    assert without.startswith(f"without sample {SAMPLE}: loss per target ")
    assert without.endswith(": it does not jump")
    *_, other = replay(launcher, bundle, tmp_path / "other", fault, [next(id for id in _ids(found) if id != SAMPLE)])
    assert other.endswith(": it still jumps")


def test_a_healthy_run_that_learns_saves_no_step(ladder: Ladder) -> None:
    outcome = ladder({}, single={"learn": 50, "overfit": 0}, options={"layers": 1, "samples": 560})
    [learn] = [rung for rung in outcome.report["rungs"] if rung["id"] == "learn"]
    assert learn["checks"]["spikes"] == "pass"
    assert not (outcome.folder / "rungs/learn/replay.pt").exists()


def test_a_backward_operation_is_named_with_its_call_in_forward(
    ladder: Ladder, launcher: LocalLauncher, tmp_path: Path
) -> None:
    small = {"layers": 2, "samples": 123}
    outcome = ladder({}, fault="distance_to_itself", single={"learn": 0, "overfit": 0}, options=small)
    [found] = findings(outcome.report, "non_finite", "single")
    assert "the gradient of step 0 is not finite" in found["message"]
    said = replay(launcher, outcome.folder / "rungs/single/replay.pt", tmp_path / "again", "distance_to_itself", [])
    named = "div in backward (SqrtBackward0 in blocks.1.mlp, of the call return cast(Tensor, self.down("
    assert named in said[1]
    assert "apart.sqrt())) (distance_to_itself.py:" in said[1]


def _ids(found: dict[str, Any]) -> list[int]:
    return [int(id) for id in found["message"].split("samples ")[1].split(";")[0].split(", ")]
