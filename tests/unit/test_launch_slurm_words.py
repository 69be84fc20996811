"""What Slurm prints, and what is made of it; options that it is given."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from tiny_world import rung

from dist_checks.launching import gpus, nodes_needed
from dist_checks.matrix import ConfigError, parse
from dist_checks.plan import Plan
from dist_checks.session import afford
from dist_checks.site import given
from launch.sbatch import _shown
from launch.scontrol import _reason, expand, fields, minutes


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3,7],login0", ["n1", "n2", "n3", "n7", "login0"]),
        ("r[08-10]c1", ["r08c1", "r09c1", "r10c1"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_node_lists(nodelist: str, names: list[str]) -> None:
    assert expand(nodelist) == names


@pytest.mark.parametrize(
    ("limit", "expected"),
    [("90", 90), ("90:30", 90.5), ("1:30:00", 90), ("1-12", 2160), ("1-12:30", 2190), ("UNLIMITED", math.inf)],
)
def test_time_limits(limit: str, expected: float) -> None:
    assert minutes(limit) == expected


def test_a_record_of_scontrol() -> None:
    line = "JobId=12 JobName=dist checks Reason=None Dependency=(null) NodeList=n[1-2] TRES=cpu=4,mem=8G,node=2"
    found = fields(line)
    assert (found["JobId"], found["JobName"], found["NodeList"]) == ("12", "dist checks", "n[1-2]")
    assert found["TRES"] == "cpu=4,mem=8G,node=2"


@pytest.mark.parametrize(
    ("record", "words", "over"),
    [
        ("JobId=7 JobState=PENDING Reason=Resources", "Slurm job 7 is PENDING (Resources)", False),
        ("JobId=7 JobState=COMPLETED ExitCode=0:0", "Slurm job 7 has ended", True),
        ("JobId=7 JobState=FAILED ExitCode=1:0", "Slurm job 7 has failed with exit code 1", True),
        ("JobId=7 JobState=FAILED ExitCode=0:11", "Slurm job 7 has failed with signal 11", True),
        (
            "JobId=7 JobState=TIMEOUT ExitCode=0:15 TimeLimit=00:10:00",
            "Slurm job 7 was ended at its time limit (00:10:00)",
            True,
        ),
        ("JobId=7 JobState=PREEMPTED ExitCode=0:15", "Slurm job 7 was preempted", True),
        ("JobId=7 JobState=NODE_FAIL ExitCode=0:0", "Slurm job 7 was ended because a node failed", True),
        ("JobId=7 JobState=OUT_OF_MEMORY", "Slurm job 7 was ended because it was out of memory", True),
    ],
)
def test_states_in_words(record: str, words: str, over: bool) -> None:
    state = _shown(record)
    assert (state.words, state.over) == (words, over)


def test_a_refusal_is_one_line() -> None:
    said = "sbatch: error: invalid partition specified: x\nsbatch: error: Batch job submission failed: Invalid\n"
    assert _reason("sbatch", said) == "invalid partition specified: x; Batch job submission failed: Invalid"


def test_what_sbatch_is_told() -> None:
    matrix = parse({"launch": {"ranks_per_node": 2, "slurm": {"partition": "gpu", "sbatch": ["--mail-type=END"]}}})
    options = matrix.launch.slurm.options(4, 2, ("n1", "n2"))
    assert {"--no-requeue", "--no-kill", "--nodes=4", "--cpus-per-task=2", "--partition=gpu"} <= set(options)
    assert options[-2:] == ["--nodelist=n1,n2", "--mail-type=END"]
    assert not [option for option in options if option.startswith("--account")]


def test_nodes_follow_from_the_largest_rung() -> None:
    assert nodes_needed(parse({"launch": {"ranks_per_node": 2}}), 8) == (4, 2)
    assert nodes_needed(parse({"launch": {"slurm": {"gres": "gpu:a100:4"}}}), 6) == (2, 4)
    assert nodes_needed(parse({"launch": {}}), 6) == (1, 6)
    assert gpus(parse({"launch": {"slurm": {"gres": "gpu"}}})) == 1


def test_nodes_of_a_ray_cluster() -> None:
    ray = {"launcher": "ray", "ray": {"nodes": 3, "cpus_per_node": 2}}
    assert nodes_needed(parse({"launch": ray}), 8) == (3, 2)


def test_what_a_run_costs_is_told_and_may_be_too_much(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    table = {"launcher": "slurm", "ranks_per_node": 2}
    plan = Plan(rungs=(rung({"dp_replicate": 8}), rung()), skipped=())
    assert afford(parse({"launch": table}), plan) == "slurm: 4 nodes with 2 devices each, about 0.002 device-hours"
    with pytest.raises(
        ConfigError, match=r"launch\.max_device_hours: slurm: 4 nodes .* 0.002 device-hours, more than 0"
    ):
        afford(parse({"launch": {**table, "max_device_hours": 0.001}}), plan)


def test_options_of_the_command_line() -> None:
    assert dict(given(["partition=gpu", "nodes=2", "wait=30", "sbatch=--mail-type=END"])) == {
        "partition": "gpu",
        "nodes": 2,
        "wait": 30.0,
        "sbatch": ["--mail-type=END"],
    }
    with pytest.raises(ValueError, match="expected KEY=VALUE, not 'partition'"):
        list(given(["partition"]))


def test_a_key_that_is_not_known() -> None:
    with pytest.raises(ConfigError, match=r"launch\.slurm\.partitoin: this key is not known"):
        parse({"launch": {"slurm": {"partitoin": "gpu"}}})
