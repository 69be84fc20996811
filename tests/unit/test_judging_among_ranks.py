"""What the checks see that hold the ranks of one rung against each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judging_cases import ACCUM, DP, ORDER, SP, TP, judged, of, rewrite, sees
from tampering import HEALTHY, Tamper
from tiny_world import make_run, rung

from dist_checks.extent import Box, Extent
from dist_checks.judging.judge import judge
from dist_checks.judging.verdict import Blamed, Finding, Status
from dist_checks.rung import Rung
from dist_checks.trace import BEFORE, Kind

# One fault for each check


def test_replicas_names_both_ranks_and_until_when_they_were_equal(tmp_path: Path) -> None:
    class OneElement(Tamper):
        def moved(self, step: int, rank: int, name: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
            if (step, rank, name) == (2, 1, "up.weight"):
                after = after.copy()
                after[0, 0] = np.nextafter(after[0, 0], 2)
            return after

    found = sees(tmp_path, "replicas", DP, OneElement())
    assert (found.step, found.tensor, found.ranks) == (2, "up.weight", (0, 1))
    assert "ranks 0 and 1 (dp_replicate)" in found.message
    assert "equal at steps 0 to 1" in found.message
    assert found.observed is not None
    assert 0 < found.observed < 1e-14


def test_replicas_sees_buffers(tmp_path: Path) -> None:
    class OwnBuffer(Tamper):
        def buffer(self, rank: int, step: int, x: np.ndarray) -> np.ndarray:
            return x + (rank == 2)

    found = sees(tmp_path, "replicas", DP, OwnBuffer())
    assert (found.step, found.tensor, found.ranks) == (BEFORE, "scale", (0, 2))


def test_replicas_sees_outputs_that_a_tp_group_should_share(tmp_path: Path) -> None:
    class OwnMask(Tamper):
        def output(self, step: int, rank: int, id: int, x: np.ndarray) -> np.ndarray:
            return x * (1 - rank * (id == ORDER[0][4]))

    found = sees(tmp_path, "replicas", TP, OwnMask())
    assert (found.step, found.tensor, found.ranks) == (0, "blocks.0", (0, 1))
    assert f"outputs of blocks.0 for sample {ORDER[0][4]} at step 0" in found.message


def test_replicas_sees_numbers_that_decide_about_a_step(tmp_path: Path) -> None:
    class OwnRate(Tamper):
        def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
            return event | {"learning_rates": [0.1 if rank == 1 and step == 3 else 0.05]}

    found = sees(tmp_path, "replicas", DP, OwnRate())
    assert (found.step, found.ranks) == (3, (0, 1))
    assert "learning rates" in found.message


def test_replicas_of_partial_sums_may_differ(tmp_path: Path) -> None:
    judgement, id = judged(tmp_path, SP, HEALTHY)
    assert of(judgement, id, "replicas")[0].status is Status.PASS


def test_own_weights_on_each_replica_fail_where_they_start(tmp_path: Path) -> None:
    class OwnSeed(Tamper):
        def initial(self, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x + 0.1 * rank

    judgement, id = judged(tmp_path, DP, OwnSeed())
    assert of(judgement, id, "replicas")[0].step == BEFORE
    assert of(judgement, id, "initial_weights")[0].status is Status.SKIP
    assert judgement.verdict.broken[0].first.check == "replicas"


def test_shards_sees_overlap_and_gap(tmp_path: Path) -> None:
    class Overlap(Tamper):
        def extent(self, rank: int, kind: Kind, name: str, extent: Extent) -> Extent:
            if rank == 1 and name == "up.weight" and kind is Kind.WEIGHT:
                return Extent(shape=extent.shape, boxes=(Box((5, 0), (6, 6)),))
            return extent

    found = sees(tmp_path, "shards", TP, Overlap())
    assert (found.step, found.tensor) == (BEFORE, "up.weight")
    assert "overlap" in found.message


def test_shards_sees_a_weight_that_nobody_holds(tmp_path: Path) -> None:
    class Lost(Tamper):
        def initial(self, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x

    run = make_run(tmp_path / "run", [rung(), rung(TP)], {"tp2": Lost()})
    for events in (run / "rungs" / "tp2").glob("*.jsonl"):
        rewrite(events, '"kind":"weight","name":"norm.weight"', '"kind":"weight","name":"other"')
    found = of(judge(run), "tp2", "shards")[0]
    assert (found.status, found.tensor) == (Status.FAIL, "norm.weight")


@pytest.mark.parametrize(
    ("setting", "ids", "step", "words"),
    [
        (DP, lambda step, rank, ids: ids if rank != 1 else [*ids[:-1], ORDER[step][0]], 0, "ranks 0 and 1 both read"),
        (TP, lambda step, rank, ids: ids if rank != 1 else ids[::-1], 0, "ranks 0 and 1 work together (tp)"),
        (
            DP,
            lambda step, rank, ids: ids if rank or step != 2 else ids[1:],
            2,
            "reads other samples than single: without",
        ),
        (ACCUM, lambda step, rank, ids: ids if step != 1 else [*ids[:-1], ORDER[0][3]], 1, "which step 0 of the same"),
        (ACCUM, lambda step, rank, ids: ids if step != 3 else ORDER[0], 3, "epoch 1 in the order of epoch 0"),
    ],
    ids=["overlap", "unequal in a tp group", "not the reference's", "twice an epoch", "the same order"],
)
def test_samples(tmp_path: Path, setting: Any, ids: Callable[..., list[int]], step: int, words: str) -> None:
    class Ids(Tamper):
        def ids(self, step: int, rank: int, mine: list[int]) -> list[int]:
            return ids(step, rank, mine)

    judgement, id = judged(tmp_path, setting, Ids())
    found = of(judgement, id, "samples")[0]
    assert found.status is Status.FAIL
    assert found.step == step
    # The reference reads other samples in each of these: the message is of the first kind of fault at the step.
    told = [f.message for f in _all_samples(tmp_path / "run", id)]
    assert any(words in message for message in told), told


def _all_samples(run: Path, id: str) -> list[Finding]:
    """What each part of the check has to say, not only the first."""
    from dist_checks.judging.checks import samples
    from dist_checks.judging.reading import read
    from dist_checks.judging.seen import Seen
    from dist_checks.judging.view import RungView

    plan = {each["id"]: each for each in json.loads((run / "plan.json").read_text())["rungs"]}
    own, single = (Rung.from_json(plan[name]) for name in (id, "single"))
    seen = [Seen(each, read(run / "rungs" / each.id, each.layout.world_size)) for each in (own, single)]
    view = RungView(own=seen[0], exit={}, reference=seen[1], truth=seen[1])
    writer = view.writer("samples")
    parts = (
        samples._unequal_groups,
        samples._shared,
        samples._unlike_reference,
        samples._repeated,
        samples._same_order,
    )
    return [finding for part in parts for finding in part(view, writer)]


def test_rng_sees_ranks_of_a_group_that_draw_other_masks(tmp_path: Path) -> None:
    class OwnState(Tamper):
        def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
            return event | {"rng": f"{step} {rank}"}

    assert sees(tmp_path, "rng", TP, OwnState()).ranks == (0, 1)


def test_rng_sees_data_ranks_that_draw_the_same_masks_under_dropout(tmp_path: Path) -> None:
    class OneState(Tamper):
        def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
            return event | {"rng": f"{step}"}

    assert sees(tmp_path, "rng", DP, OneState(), dropout=0.1).ranks == (0, 1)
    assert of(judged(tmp_path / "without", DP, OneState())[0], "dp_replicate3", "rng")[0].status is Status.PASS


def test_under_dropout_nothing_can_be_compared(tmp_path: Path) -> None:
    judgement, id = judged(tmp_path, DP, HEALTHY, dropout=0.1)
    for check in ("forward", "loss", "gradients", "contributions", "updates"):
        found = of(judgement, id, check)[-1]  # SGD's formula is judged all the same
        assert found.status is Status.INCONCLUSIVE
        assert "switch it off to compare" in found.message
    assert judgement.verdict.blamed is Blamed.NOT_COMPARABLE
