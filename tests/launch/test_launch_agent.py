"""The agent's protocol, spoken by hand."""

from __future__ import annotations

import os
import time

import pytest
from launch_watching import assert_gone, order, wait_for

from launch.client import LocalAgent

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def agent():
    agent = LocalAgent([])
    agent.ready()
    yield agent
    agent.close(1.5)
    assert_gone({agent.pid})


def until_over(agent, seconds=20.0):
    reports, until = [], time.monotonic() + seconds
    while not any(report["said"] == "over" for report in reports):
        assert time.monotonic() < until
        agent.wire.wait(0.5)
        reports += agent.receive()
    return reports


def test_ranks_of_one_node_among_several(agent, job, tmp_path):
    names = {
        "names": ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"]
    }
    request = order(job("environment", payload=names), ranks=[2, 3], world_size=4, group_rank=1)
    agent.wire.send(request | {"master_addr": "node0", "master_port": 4242})
    reports = until_over(agent)
    assert [report["said"] for report in reports] == ["started", "started", "ended", "ended", "over"]
    assert {report["rank"] for report in reports[2:4]} == {2, 3}
    log = (tmp_path / "job" / "rank-00003.log").read_text()
    assert log == (
        "RANK=3\nLOCAL_RANK=1\nWORLD_SIZE=4\nLOCAL_WORLD_SIZE=2\nGROUP_RANK=1\nMASTER_ADDR=node0\nMASTER_PORT=4242\n"
    )


@pytest.mark.parametrize("grace", [0.0, 0.3])
def test_cancel(agent, job, tmp_path, grace):
    agent.wire.send(order(job("sleep")))
    ranks = wait_for(tmp_path, 2)
    start = time.monotonic()
    agent.wire.send({"do": "cancel", "job": "job", "grace": grace})
    agent.wire.send({"do": "cancel", "job": "unheard of"})
    reports = until_over(agent)
    assert grace <= time.monotonic() - start < grace + 1.0
    assert [report["killed"] for report in reports if report["said"] == "ended"] == [True, True]
    assert_gone(ranks, seconds=0.5)
    assert agent.lives


def test_a_folder_that_cannot_be_written(agent, job, tmp_path):
    (tmp_path / "job").write_text("a file")
    agent.wire.send(order(job("sleep")))
    reports = until_over(agent)
    assert [report["said"] for report in reports] == ["ended", "ended", "over"]
    assert reports[-1]["error"].startswith("its ranks could not be started on this node: [Errno 17] File exists: ")
    assert reports[-1]["unstarted"]
    assert agent.lives


def test_more_reports_than_anybody_reads(agent, job, tmp_path):
    """The agent keeps its deadlines although its launcher does not listen."""
    for number in range(3):
        agent.wire.send(order(job("shout", name=f"job{number}", world_size=8, deadline=1.0)))
    ranks = wait_for(tmp_path, 24)
    time.sleep(1.0)
    assert_gone(ranks)
    os.kill(agent.pid, 0)
    assert sum(report["said"] == "over" for report in until_over(agent)) >= 1
