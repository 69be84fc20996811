"""Ray Train starts the ranks: the script is run once for a rung, and its workers write the trace."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from jobs_of_users import Job
from parts import need

from dist_checks.matrix import ConfigError, parse
from dist_checks.session import Outcome

SCRIPT = "ray_train_job.py"


def ladder(job: Job, **more: Any) -> Outcome:
    for part in ("ray", "pandas", "pyarrow"):
        need(part)
    return job(
        SCRIPT,
        "--workers {world_size} --out {out}",
        {"dp_replicate": 2},
        command={"launches": True, "warm": False},
        before=f"env RAY_AUTH_MODE=disabled RAY_TMPDIR=/tmp {sys.executable}",
        launch={"cold_twin": False, "deadline": 400.0, "stall": 300.0},
        select="dp_replicate2",  # and its single; a Ray takes long to start
        **more,
    )


@pytest.mark.timeout(900)
def test_two_workers(job: Job) -> None:
    outcome = ladder(job)
    assert outcome.report["status"] == "pass", outcome.report["sentence"]
    (rung,) = [rung for rung in outcome.report["rungs"] if rung["role"] == "rung" and rung["world_size"] > 1]
    for check in ("launch", "completes", "engaged", "samples", "initial_weights", "loss", "gradients", "updates"):
        assert rung["checks"][check] == "pass", check


@pytest.mark.timeout(900)
def test_workers_that_read_the_same(job: Job) -> None:
    """k2-fsa/icefall#1616: the sampler does not know of the others."""
    report = ladder(job, mistake=("DistributedSampler(data, world, rank,", "DistributedSampler(data, 1, 0,")).report
    assert report["status"] == "fail"
    assert [broken["axes"] for broken in report["broken"]] == [["dp_replicate"]], report["sentence"]
    found = [f["message"] for f in report["findings"] if f["check"] == "samples" and f["status"] == "fail"]
    assert any("ranks 0 and 1 both read" in message for message in found), found


def test_ranks_that_the_script_starts_are_not_forked() -> None:
    command = {"argv": "train.py --ranks {world_size}", "launches": True, "warm": True}
    with pytest.raises(ConfigError, match=r"command\.launches: ranks that a script starts are neither forked"):
        parse({"command": command, "axes": {"dp_replicate": 2}})
