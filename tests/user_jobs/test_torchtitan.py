"""torchtitan's own Trainer is watched: healthy it passes, and what is wrong in it or its data is blamed on its axis."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from jobs_of_users import HERE, Job
from parts import need

from dist_checks.launching import PRELOAD
from launch.local import LocalLauncher

SCRIPT, WORDS = "torchtitan_train.py", "--tp {tp} --accum {accum} --out {out}"
PATH = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))


@pytest.fixture(scope="module")
def launcher() -> Iterator[LocalLauncher]:
    """Ranks are forked from a process that has imported torchtitan, which takes seconds."""
    for part in ("torchtitan", "triton"):
        need(part)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", PATH)
        with LocalLauncher(preload=(*PRELOAD, "titan_on_cpu")) as launcher:
            yield launcher


MISTAKES = {
    # deepspeedai/DeepSpeed#99
    "data over the world": (
        {"dp_shard": 2, "tp": 2},
        (
            "self.world, self.rank, self.batch = dp_world_size, dp_rank, local_batch_size",
            "self.world, self.rank = torch.distributed.get_world_size(), torch.distributed.get_rank()\n"
            "        self.batch = local_batch_size",
        ),
        ("tp", "samples", "work together (tp) and read different samples"),
    ),
    # pytorch/torchtitan#2206, of the family of huggingface/transformers#34242: a mean over the targets of each rank
    "mean of means": (
        {"dp_shard": 2},
        (
            "    watch(trainer).train()",
            "    right, ranks = trainer.loss_fn, torch.distributed.get_world_size()\n"
            "    trainer.loss_fn = lambda pred, labels, total: right(pred, labels, ranks * (labels != -100).sum())\n"
            "    watch(trainer).train()",
        ),
        ("dp_shard", "gradients", ""),
    ),
}


def test_healthy(job: Job) -> None:
    outcome = job(SCRIPT, WORDS, {"dp_shard": 2, "tp": 2, "accum": 3})
    assert outcome.report["status"] == "pass", outcome.report["sentence"]
    checks = {rung["id"]: rung["checks"] for rung in outcome.report["rungs"]}
    for check in ("engaged", "samples", "initial_weights", "shards", "loss", "gradients", "grad_norm", "updates"):
        assert checks["dp_shard2+tp2+accum3"][check] == "pass", check
    (said,) = [f["message"] for f in outcome.report["findings"] if (f["rung"], f["check"]) == ("tp2", "gradients")]
    assert said.endswith("seen before clipping, at clip_grad_norm_")


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name: str, job: Job) -> None:
    axes, mistake, (blamed, check, words) = MISTAKES[name]
    report = job(SCRIPT, WORDS, axes, mistake=mistake).report
    assert report["status"] == "fail"
    assert [" x ".join(broken["axes"]) for broken in report["broken"]] == [blamed], report["sentence"]
    found = [f["message"] for f in report["findings"] if f["check"] == check and f["status"] == "fail"]
    assert any(words in message for message in found), found


def test_no_line(job: Job) -> None:
    watched = ("watch(trainer).train()", "trainer.train()")
    outcome = job(SCRIPT, WORDS, {"dp_shard": 2}, changes=[watched], command={"see": "hooks"})
    assert outcome.report["status"] == "pass", outcome.report["sentence"]
