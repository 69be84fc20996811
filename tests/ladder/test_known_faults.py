"""The faults of the catalogue that name a ladder for themselves, and what is to blame besides axes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ladders import Ladder, broken, findings
from planting import SMALL, axes, expected, matrix, two_to_a_host

from dist_checks import session
from dist_checks.judging.verdict import ExitCode
from dist_checks.session import PRELOAD
from dist_checks.worker.faults import FAULTS, find
from launch.local import LocalLauncher

# Those of an axis: the others have tests of their own below and in test_faults.py.
HERE = ("O01", "O02", "O04", "O10", "O12", "O13", "O16", "O19", "O23a", "O23b", "learning_stops")


@pytest.mark.parametrize("id", HERE)
def test_it_is_caught_where_it_should_be_and_blamed_on_its_axes(ladder: Ladder, id: str) -> None:
    (fault,) = find(id)
    outcome = ladder(axes(fault), fault=id, **matrix(fault), blame={"budget": 0})
    assert outcome.exit_code() is ExitCode.FAIL
    assert outcome.report["blamed"] == fault.blamed
    assert broken(outcome.report) == expected(fault)
    for entry in outcome.report["broken"]:
        assert (entry["check"], entry["step"]) == (fault.check, fault.step)


@pytest.mark.parametrize("id", ["O05", "O06"])
def test_worlds_that_are_not_one_are_the_launcher(ladder: Ladder, id: str) -> None:
    (fault,) = find(id)
    outcome = ladder(axes(fault), fault=id, **matrix(fault))
    assert (outcome.report["blamed"], outcome.report["broken"]) == ("launcher", [])
    assert outcome.report["sentence"].startswith("FAIL broken: the launcher (launch of ")
    rungs = [r["id"] for r in outcome.report["rungs"] if r["checks"].get("launch") == "fail"]
    messages = [findings(outcome.report, "launch", rung)[0]["message"] for rung in rungs]
    assert any("world of" in message for message in messages), messages


def test_a_race_is_told_from_an_axis_by_a_rerun(ladder: Ladder) -> None:
    (fault,) = find("O21")
    outcome = ladder(axes(fault), fault="O21", **matrix(fault))
    assert (outcome.report["blamed"], outcome.report["broken"]) == ("race", [])
    # Where the buffer is overwritten is no function of the seed, so it is another tensor each time.
    assert re.fullmatch(
        r"FAIL broken: a race \(dp_replicate3 differs from its own rerun at step 2 in [a-z0-9_.]+\.(weight|bias)\)",
        outcome.report["sentence"],
    )
    [rerun] = [rung for rung in outcome.report["rungs"] if rung["id"] == "dp_replicate3@again"]
    assert (rerun["role"], rerun["planned"], rerun["checks"]["twins"]) == ("twin", False, "fail")


def test_two_axes_that_break_on_their_own_are_both_named(ladder: Ladder) -> None:
    outcome = ladder({"dp_shard": 3, "tp": 2, "accum": 5}, fault="O20,O23b", options=SMALL)
    assert broken(outcome.report) == [["dp_shard"], ["tp"]]
    assert {(b["axes"][0], b["check"]) for b in outcome.report["broken"]} == {("dp_shard", "grad_norm"), ("tp", "loss")}
    reruns = [rung["id"] for rung in outcome.report["rungs"] if rung["id"].endswith("@again")]
    assert sorted(reruns) == ["dp_shard3@again", "single@again", "tp2@again"]


def test_neighbours_that_were_not_selected_are_run_when_they_would_decide(launcher: Any, tmp_path: Path) -> None:
    given = {
        "axes": {"dp_replicate": 3, "accum": 5},
        "options": SMALL,
        "steps": 1,
        "launch": {"cold_twin": False},
    }
    outcome = session.run(given, out=tmp_path / "run", fault="O12", launcher=launcher, select="dp_replicate3+accum5")
    assert broken(outcome.report) == [["accum", "dp_replicate"]]


@pytest.fixture(scope="module")
def two_hosts() -> Iterator[LocalLauncher]:
    with LocalLauncher(preload=PRELOAD, nodes=two_to_a_host) as launcher:
        yield launcher


@pytest.mark.parametrize("id", ["O34", "host_multiplies_wrongly"])
def test_a_host_is_blamed_for_what_follows_it_over_rungs(two_hosts: LocalLauncher, tmp_path: Path, id: str) -> None:
    (fault,) = find(id)
    given = {"steps": 1, "launch": {"cold_twin": False, "deadline": 120.0}, "blame": {"budget": 0}}
    outcome = session.run(
        {**given, **matrix(fault), "axes": axes(fault)}, out=tmp_path / "run", fault=id, launcher=two_hosts
    )
    assert (outcome.report["blamed"], outcome.report["broken"]) == ("host", [])
    assert (
        "host n1 (in all 2 rungs that fail and in none that passes: dp_replicate4, dp_shard4)"
        in outcome.report["sentence"]
    )


def test_each_fault_says_what_it_is() -> None:
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert bool(fault.axes) == (fault.blamed == "axis"), fault.id
        assert fault.source, fault.id
        assert fault.axes or fault.planted_in, fault.id
