"""Cold starts under torch elastic tell the same as warm ones: real collectives, failures and deadlines."""

from __future__ import annotations

import os
import sys
import time

import pytest
from launch_watching import assert_gone, order, wait_for

from launch import LocalLauncher, State
from launch.cold import ColdCrew

pytestmark = pytest.mark.timeout(200)


def lines(exit, rank=0):
    return exit.ranks[rank].log.read_text().splitlines()


def test_collectives_warm_and_cold(job):
    """The same entries, forked and under torch elastic."""
    with LocalLauncher(slots=3, preload=["torch.distributed"]) as launcher:
        jobs = [
            job(entry, name=f"{entry}-{start}", world_size=size, cold=start == "cold", deadline=100)
            for start in ("warm", "cold")
            for entry, size in (("all_reduce", 3), ("break_a_collective", 2))
        ]
        exits = {exit.job: exit for exit in launcher.run(jobs)}
    for start, scheme in (("warm", "file"), ("cold", "env")):
        good, bad = exits[f"all_reduce-{start}"], exits[f"break_a_collective-{start}"]
        assert good.error == ""
        for rank in range(3):
            assert lines(good, rank)[-1] == f"sum [6.0, 6.0, 6.0] by {scheme} threads 1"
        # Rank 0 may fail too, because rank 1 was killed.
        assert (bad.state, bad.first_failed) == (State.FAILED, 1)
        assert "killed by SIGKILL" in bad.error.splitlines()[0]
    assert exits["all_reduce-warm"].seconds < exits["all_reduce-cold"].seconds


def test_cold_ranks_are_as_well_known_as_warm_ones(launcher, job):
    jobs = [
        job("raise_on_one", name="raise", cold=True, deadline=100),
        job(name="command", cold=True, deadline=100, argv=(sys.executable, "-c", "raise SystemExit(4)")),
    ]
    exits = {exit.job: exit for exit in launcher.run(jobs)}
    assert {exit.state for exit in exits.values()} == {State.FAILED}
    raised, command = exits["raise"], exits["command"]
    assert raised.first_failed == 1
    assert raised.error.splitlines()[0].endswith("ZeroDivisionError: one")
    assert raised.ranks[0].killed
    assert raised.ranks[1].error == raised.ranks[1].log.read_text()
    assert command.ranks[command.first_failed].code == 4
    assert all(rank.pid > 0 for rank in (*raised.ranks, command.ranks[command.first_failed]))


def test_cold_deadline(job, tmp_path):
    """Driven by hand, so that the deadline comes when the ranks are there, however long torch takes to import."""
    (tmp_path / "scratch").mkdir()
    reports, watched = [], []
    crew = ColdCrew(order(job("sleep", deadline=1000.0)), scratch=tmp_path / "scratch" / "1", tell=reports.append)
    crew.start(watch=watched.append, forget=lambda: None)
    ranks = wait_for(tmp_path, 2, seconds=100)
    crew.tick(crew.due)
    time.sleep(0.5)
    crew.tick(crew.due)
    (elastic,) = watched
    crew.child_ended(elastic, os.waitpid(elastic, 0)[1], time.monotonic())
    assert crew.over
    assert [report["said"] for report in reports] == ["ended", "ended", "over"]
    for report in reports[:2]:
        assert report["late"]
        assert report["killed"]
        assert report["where"].startswith("sleep (launch_entries.py:")
    assert_gone(ranks)
    assert not any((tmp_path / "scratch").iterdir())
