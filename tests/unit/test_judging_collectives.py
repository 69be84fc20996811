"""Who waits in which collective, who is missing there, and which calls do not fit each other."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from judging_cases import of
from tiny_world import make_run, rung

from dist_checks.judging.judge import judge
from dist_checks.judging.verdict import Finding, Status
from dist_checks.trace import SCHEMA, Chain, collectives_path

WORLD, PAIR, LOOP = "0", "1", "2"
RANKS = {WORLD: [0, 1, 2], PAIR: [0, 1], LOOP: [0, 1, 2]}
SUM = ("all_reduce", [["double", [4]]], "reduce (train.py:5)")
LONGER = ("all_reduce", [["double", [5]]], "reduce (train.py:5)")
GATHER = ("all_gather", [["double", [4]]], "gather (train.py:9)")
BARRIER = ("barrier", [], "stop (train.py:20)")
SAVE = ("barrier", [], "save (train.py:15)")
Calls = Iterable[tuple[str, Any]]


def ledger(folder: Path, rank: int, calls: Calls, *, pending: bool = False, site: str = "", left: bool = True) -> None:
    """What a rank leaves that has called these, the last one in vain if ``pending``; ``site`` is where it hung."""
    lines: list[dict[str, Any]] = [{"event": "header", "schema": SCHEMA, "rank": rank}]
    lines += [
        {"event": "group", "index": index, "name": name, "description": "mesh_dp" * (name == PAIR), "ranks": ranks}
        for index, (name, ranks) in enumerate(RANKS.items())
    ]
    counts = dict.fromkeys(RANKS, 0)
    records = []
    for index, (group, (operation, tensors, site_of)) in enumerate(calls):
        counts[group] += 1
        lines.append(
            {"event": "call", "index": index, "operation": operation, "inputs": tensors, "outputs": [], "site": site_of}
        )
        records.append([list(RANKS).index(group), counts[group], index, counts[group] - 1, 0])
    if pending:
        records[-1][-1] = 1
    lines.append({"event": "collectives", "records": records})
    if site:
        lines.append({"event": "hang", "step": 2, "site": site})
    elif left:
        lines += [{"event": "end"}, {"event": "left"}]
    path = collectives_path(folder, rank)
    chain = Chain(path)
    path.write_text("".join(chain.sign(json.dumps(line)) for line in lines))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", [rung(), rung({"dp_replicate": 3})])


def folder(run: Path) -> Path:
    return run / "rungs" / "dp_replicate3"


def end(run: Path, state: str, killed: Iterable[int] = ()) -> None:
    path = folder(run) / "exit.json"
    found = json.loads(path.read_text())
    for rank in found["ranks"]:
        rank["killed"] = rank["rank"] in set(killed)
        rank["code"] = None if rank["killed"] else 0
    path.write_text(json.dumps(found | {"state": state}))


def found(run: Path) -> list[Finding]:
    return of(judge(run), "dp_replicate3", "collectives")


def test_nothing_recorded_is_skipped(run: Path) -> None:
    assert [finding.status for finding in found(run)] == [Status.SKIP]


def test_ranks_that_agree(run: Path) -> None:
    for rank in range(3):
        ledger(folder(run), rank, [(WORLD, SUM), *[(PAIR, GATHER)] * (rank < 2), (WORLD, BARRIER)])
    (finding,) = found(run)
    assert (finding.status, finding.message) == (Status.PASS, "3 collectives of 2 groups agree over their ranks")


def test_shapes_that_differ_although_all_ranks_returned(run: Path) -> None:
    for rank in range(3):
        ledger(folder(run), rank, [(WORLD, SUM), (WORLD, LONGER if rank == 2 else SUM), (WORLD, BARRIER)])
    (finding,) = found(run)
    assert (finding.status, finding.step, finding.ranks) == (Status.FAIL, 1, (2,))
    assert finding.message == (
        "collective 2 of the group of ranks 0, 1 and 2: ranks 0 and 1 called all_reduce of double [4] at reduce "
        "(train.py:5); rank 2 called all_reduce of double [5] at reduce (train.py:5)"
    )


@pytest.mark.parametrize(
    ("operation", "tensors", "agree"),
    [
        ("all_to_all", [[["double", [4]]], [["double", [7]]], [["double", [1]]]], True),
        ("alltoall_base", [[["double", [4]]], [["float", [4]]], [["double", [4]]]], False),
        ("scatter", [[["double", [4]], ["double", [4]]], [], []], True),
        ("broadcast", [[["double", [4]]], [["double", [4]]], [["double", [4]]]], True),
        ("reduce_scatter", [[["double", [4]]], [["double", [5]]], [["double", [4]]]], False),
    ],
)
def test_what_may_differ(run: Path, operation: str, tensors: list[Any], agree: bool) -> None:
    for rank in range(3):
        ledger(folder(run), rank, [(WORLD, (operation, tensors[rank], ""))])
    assert (found(run)[0].status is Status.PASS) == agree


def test_a_rank_that_stays_behind(run: Path) -> None:
    ledger(folder(run), 0, [(WORLD, SUM)] * 2, pending=True, site="reduce (train.py:5)")
    ledger(folder(run), 1, [(WORLD, SUM)], site="load (disk.py:3), from step (train.py:2)")
    ledger(folder(run), 2, [(WORLD, SUM)] * 2, pending=True, site="reduce (train.py:5)")
    end(run, "timed_out", killed=(0, 1, 2))
    (finding,) = found(run)
    assert (finding.status, finding.step, finding.ranks) == (Status.FAIL, 1, (1,))
    assert finding.message == (
        "hung in step 1: ranks 0 and 2 wait in all_reduce of double [4] of the group of ranks 0, 1 and 2 (its "
        "collective 2) at reduce (train.py:5), one ahead of rank 1, which is in load (disk.py:3), from step "
        "(train.py:2)"
    )


def test_a_rank_that_could_not_say_where_it_is_is_where_the_launcher_saw_it(run: Path) -> None:
    for rank in (0, 2):
        ledger(folder(run), rank, [(WORLD, SUM)], pending=True, site="reduce (train.py:5)")
    end(run, "timed_out", killed=(0, 1, 2))
    path = folder(run) / "exit.json"
    said = json.loads(path.read_text())
    said["ranks"][1]["where"] = "spin (native.py:1)"
    path.write_text(json.dumps(said))
    assert found(run)[0].message.endswith("one ahead of rank 1, which is in spin (native.py:1)")


def test_ranks_that_wait_for_each_other_in_two_groups(run: Path) -> None:
    ledger(folder(run), 0, [(WORLD, SUM), (PAIR, GATHER)], pending=True, site="x")
    ledger(folder(run), 1, [(WORLD, SUM), (WORLD, SUM)], pending=True, site="x")
    ledger(folder(run), 2, [(WORLD, SUM), (WORLD, SUM)], pending=True, site="x")
    end(run, "timed_out", killed=(0, 1, 2))
    (finding,) = found(run)
    assert finding.ranks == (0,)
    assert "one ahead of rank 0; rank 0 waits in all_gather of double [4] of the dp group of ranks 0 and 1" in (
        finding.message
    )


def test_one_ahead_at_the_end(run: Path) -> None:
    ledger(folder(run), 0, [(WORLD, SUM), (WORLD, SAVE), (WORLD, BARRIER)], pending=True, site="stop (train.py:20)")
    for rank in (1, 2):
        ledger(folder(run), rank, [(WORLD, SUM), (WORLD, BARRIER)])
    end(run, "timed_out", killed=[0])
    (finding,) = found(run)
    assert finding.ranks == (0,)
    assert "one ahead of ranks 1 and 2, which have ended with exit code 0" in finding.message
    assert "was barrier at save (train.py:15) on rank 0 and at stop (train.py:20) on rank 1" in finding.message


def test_one_ahead_and_failed(run: Path) -> None:
    """gloo says that the peers are gone; what the ranks have called says why."""
    ledger(folder(run), 0, [(WORLD, SUM), (WORLD, SAVE), (WORLD, BARRIER)], left=False)
    for rank in (1, 2):
        ledger(folder(run), rank, [(WORLD, SUM), (WORLD, BARRIER)])
    end(run, "failed")
    (finding,) = found(run)
    assert (finding.status, finding.ranks) == (Status.FAIL, (0,))
    assert finding.message.startswith("rank 0 called 3 collectives of the group of ranks 0, 1 and 2, ranks 1 and 2 2:")


@pytest.mark.parametrize("cut", [0.0, 0.3, 0.6, 0.99])
def test_a_file_that_is_cut_is_named(run: Path, cut: float) -> None:
    for rank in range(3):
        ledger(folder(run), rank, [(WORLD, SUM)])
    path = collectives_path(folder(run), 1)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * cut)])
    (finding,) = found(run)
    assert finding.status is Status.INCONCLUSIVE
    assert "rank 1" in finding.message
    path.unlink()
    assert found(run)[0].message == "rank 1 left no file of collectives"


def test_who_left_a_circle(run: Path) -> None:
    """Each waits for another in one of two groups of the same ranks: rank 2 has left out what the others called."""
    before = [(WORLD, SUM), (LOOP, SUM)]
    ledger(folder(run), 0, [*before, (WORLD, GATHER)], pending=True, site="main (train.py:1)")
    ledger(folder(run), 1, [*before, (WORLD, GATHER), (LOOP, SUM)], pending=True, site="main (train.py:1)")
    ledger(folder(run), 2, [*before, (LOOP, SUM)], pending=True, site="main (train.py:1)")
    end(run, "timed_out", killed=[0, 1, 2])
    (finding,) = found(run)
    assert (finding.status, finding.ranks) == (Status.FAIL, (2,))
    assert finding.message.endswith(
        "; first to differ: ranks 0 and 1 called all_gather of double [4] at gather (train.py:9), rank 2 called "
        "all_reduce of double [4] at reduce (train.py:5)"
    )
