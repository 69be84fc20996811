"""Scripts that cannot be judged, or that do not do what they are told: the right word for each, and what to do."""

from __future__ import annotations

from typing import Any

import pytest
from jobs_of_users import Job

from dist_checks.matrix import ConfigError

DDP = {"dp_replicate": 2}


def findings(report: dict[str, Any], check: str, rung: str) -> list[tuple[str, str]]:
    return [(f["status"], f["message"]) for f in report["findings"] if (f["check"], f["rung"]) == (check, rung)]


def test_a_script_that_does_not_take_its_arguments_is_a_matter_of_usage(job: Job) -> None:
    with pytest.raises(ConfigError, match=r"command\.argv: the script cannot be started: .*--no-such-thing"):
        job("nanogpt_ddp.py", "--no-such-thing 3", DDP, command={"warm": False})


def test_a_script_that_breaks_before_it_trains(job: Job) -> None:
    with pytest.raises(ConfigError, match=r"the script cannot be started: .*No module named 'no_such_module'"):
        job("nanogpt_ddp.py", "", DDP, mistake=("import argparse", "import argparse, no_such_module"))


def test_a_script_that_attaches_no_probe_is_told_which_lines_to_add(job: Job) -> None:
    mistake = ("probe = dist_checks.Probe.attach(model, optimizer)", "probe = dist_checks.Probe()")
    with pytest.raises(ConfigError, match=r"no probe was attached: .*Probe\.attach\(model, optimizer\).*\"hooks\""):
        job("nanogpt_ddp.py", "", DDP, mistake=mistake)


def test_a_script_that_says_no_loss_is_judged_by_the_rest(job: Job) -> None:
    outcome = job("nanogpt_ddp.py", "", DDP, mistake=("probe.step(loss=total)", "probe.step()"))
    assert outcome.report["status"] == "pass", outcome.report["sentence"]
    ((status, message),) = findings(outcome.report, "loss", "dp_replicate2")
    assert status == "skip"
    assert "probe.step(loss=...)" in message


def test_a_script_that_ignores_its_tp(job: Job) -> None:
    outcome = job("fsdp2_tp.py", "--tp {tp}", {"tp": 2}, mistake=("if args.tp > 1:", "if False:"))
    (broken,) = outcome.report["broken"]
    assert broken["axes"] == ["tp"]
    assert broken["check"] == "engaged"
    assert "tp is not on: none of 21 parameters is smaller on a rank than it is in full" in broken["explanation"]


def test_a_script_that_reads_another_batch_in_each_layout(job: Job) -> None:
    outcome = job("nanogpt_ddp.py", "", DDP, mistake=("(args.batch,), gen", "(args.batch * world,), gen"))
    (broken,) = outcome.report["broken"]
    assert broken["check"] == "samples"
    assert (
        "24 instead of 12: a batch has to be the same in every layout, so divide it by the 2 data ranks"
        in (broken["explanation"])
    )


def test_a_script_whose_weights_depend_on_the_layout_is_not_comparable(job: Job) -> None:
    outcome = job(
        "nanogpt_ddp.py", "", DDP, mistake=("torch.manual_seed(args.seed)", "torch.manual_seed(args.seed + world)")
    )
    assert outcome.report["status"] == "inconclusive"
    assert outcome.report["blamed"] == "not_comparable"
    ((_, message),) = findings(outcome.report, "initial_weights", "dp_replicate2")
    assert "Seed right before the model is made" in message


def test_different_seeds_under_ddp_are_innocent(job: Job) -> None:
    """karpathy/nanoGPT#22: DDP broadcasts the weights of rank 0."""
    outcome = job(
        "nanogpt_ddp.py", "", DDP, mistake=("torch.manual_seed(args.seed)", "torch.manual_seed(args.seed + rank)")
    )
    assert outcome.report["status"] == "pass", outcome.report["sentence"]


def test_an_axis_that_the_command_line_does_not_mention(job: Job) -> None:
    with pytest.raises(ConfigError, match=r"axes\.accum: command\.argv has no \{accum\}"):
        job("nanogpt_ddp.py", "", {**DDP, "accum": 3})
