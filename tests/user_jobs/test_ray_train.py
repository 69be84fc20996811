"""Ray Train starts the ranks: the script is run once for a rung, and its workers write the trace."""

from __future__ import annotations

import sys

import pytest
from jobs_of_users import Job
from parts import need

from dist_checks.matrix import ConfigError, parse

SCRIPT = "ray_train_job.py"


@pytest.mark.timeout(900)
def test_two_workers(job: Job) -> None:
    for part in ("ray", "pandas", "pyarrow"):
        need(part)
    outcome = job(
        SCRIPT,
        "--workers {world_size} --out {out}",
        {"dp_replicate": 2},
        command={"launches": True, "warm": False},
        before=f"env RAY_AUTH_MODE=disabled RAY_TMPDIR=/tmp {sys.executable}",
        launch={"cold_twin": False, "deadline": 400.0, "stall": 300.0},
    )
    assert outcome.report["status"] == "pass", outcome.report["sentence"]
    (rung,) = [rung for rung in outcome.report["rungs"] if rung["role"] == "rung" and rung["world_size"] > 1]
    for check in ("launch", "completes", "engaged", "samples", "initial_weights", "loss", "gradients", "updates"):
        assert rung["checks"][check] == "pass", check


def test_ranks_that_the_script_starts_are_not_forked() -> None:
    command = {"argv": "train.py --ranks {world_size}", "launches": True, "warm": True}
    with pytest.raises(ConfigError, match=r"command\.launches: ranks that a script starts are neither forked"):
        parse({"command": command, "axes": {"dp_replicate": 2}})
