"""Each check sees the fault that is planted for it, and passes without it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_world import HEALTHY, SHAPES, Tamper, World, make_run, rung, write_plan

from dist_checks.axes import Setting
from dist_checks.extent import Box, Extent
from dist_checks.judging.checks import CHECKS
from dist_checks.judging.judge import Judgement, judge
from dist_checks.judging.verdict import Blamed, Finding, Status
from dist_checks.rung import Role, Rung
from dist_checks.trace import BEFORE, Kind

TP, DP, SHARD, SP, ACCUM = {"tp": 2}, {"dp_replicate": 3}, {"dp_shard": 2}, {"tp": 2, "sp": True}, {"accum": 3}
ALL = {"dp_replicate": 3, "tp": 2, "accum": 2}


def of(judgement: Judgement, rung: str, check: str) -> list[Finding]:
    return [finding for finding in judgement.findings if finding.rung == rung and finding.check == check]


def judged(tmp_path: Path, setting: Mapping[str, Any], tamper: Tamper, **options: Any) -> tuple[Judgement, str]:
    steps = options.pop("steps", 4)
    precision = setting.get("precision")
    singles = [rung(steps=steps)] + ([rung({"precision": precision}, steps=steps)] if precision else [])
    broken = rung(setting, steps=steps)
    rungs = singles if broken.id in [single.id for single in singles] else [*singles, broken]
    return judge(make_run(tmp_path / "run", rungs, {broken.id: tamper}, **options)), broken.id


def sees(tmp_path: Path, check: str, setting: Mapping[str, Any], tamper: Tamper, **options: Any) -> Finding:
    """The failing finding of ``check``."""
    judgement, id = judged(tmp_path, setting, tamper, **options)
    found = of(judgement, id, check)
    assert next(finding.status for finding in found) is Status.FAIL, found
    assert found[0].try_next.startswith(f"dist-checks run -k {id} --steps ")
    return found[0]


# Quiet where nothing is wrong


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize("setting", [TP, DP, SHARD, SP, ACCUM, ALL, {"tp": 2, "precision": "bf16"}], ids=str)
def test_a_healthy_rung_passes_every_check(tmp_path: Path, setting: Mapping[str, Any], optimizer: str) -> None:
    judgement, id = judged(tmp_path, setting, HEALTHY, optimizer=optimizer)
    for name, _ in CHECKS:
        found = of(judgement, id, name)
        assert found, name
        assert {finding.status for finding in found} <= {Status.PASS, Status.SKIP}, found
    assert judgement.verdict.sentence == "PASS 1 rung equal to one device"
    passed = {finding.check for finding in judgement.findings if finding.status is Status.PASS and finding.rung == id}
    assert passed >= {"launch", "engaged", "samples", "initial_weights", "shards", "schedule", "forward", "loss"}
    assert passed >= {"gradients", "contributions", "grad_norm", "updates", "completes"}
    for finding in judgement.findings:
        if finding.status is Status.PASS and finding.allowed is not None and finding.check != "launch":
            assert finding.observed is not None
            assert finding.observed <= finding.allowed


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
        text = events.read_text().replace('"kind":"weight","name":"norm.weight"', '"kind":"weight","name":"other"')
        events.write_text(text)
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


ORDER = [World(rung(), Path("unused")).ids(step)[1] for step in range(4)]


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


def test_initial_weights_that_differ_everywhere_are_not_comparable(tmp_path: Path) -> None:
    class OtherSeed(Tamper):
        def initial(self, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x * 1.5 if name == "down.weight" else x

    judgement, id = judged(tmp_path, DP, OtherSeed())
    (found,) = of(judgement, id, "initial_weights")
    assert (found.status, found.blames, found.tensor) == (Status.INCONCLUSIVE, Blamed.NOT_COMPARABLE, "down.weight")
    assert "Seed" in found.message
    # Nothing that follows from it is called a fault.
    assert all(finding.status is not Status.FAIL for finding in judgement.findings)
    assert judgement.verdict.status is Status.INCONCLUSIVE
    assert judgement.verdict.blamed is Blamed.NOT_COMPARABLE


def test_forward_names_the_sample_and_the_block(tmp_path: Path) -> None:
    class Masked(Tamper):
        def output(self, step: int, rank: int, id: int, x: np.ndarray) -> np.ndarray:
            return x * 1.01 if id == ORDER[0][4] else x

    found = sees(tmp_path, "forward", TP, Masked())
    assert (found.step, found.tensor) == (0, "blocks.0")
    assert f"of sample {ORDER[0][4]}" in found.message
    assert found.scale == pytest.approx(1.01)


@pytest.mark.parametrize(
    ("setting", "factor", "words"),
    [
        (DP, 3.0, "every gradient is 3 x the reference: not divided by dp_replicate (3)"),
        (DP, 1 / 3, "divided by dp_replicate (3) once too often"),
        (TP, 2**0.5, "the square root of tp (2)"),
        (ACCUM, -1.0, "its sign is flipped"),
        (TP, 1.37, "every gradient is 1.37 x the reference"),
        (ALL, 1.5, "off by dp_replicate / tp (3 / 2)"),
    ],
)
def test_gradients_explains_factors(tmp_path: Path, setting: Any, factor: float, words: str) -> None:
    class Scaled(Tamper):
        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x * factor

    found = sees(tmp_path, "gradients", setting, Scaled())
    assert found.step == 0
    assert found.scale == pytest.approx(factor)
    assert found.explanation is not None
    assert words in found.explanation.sentence
    assert found.explanation.before > 0.3
    assert found.explanation.after < 1e-12


def test_gradients_says_which_and_how_many(tmp_path: Path) -> None:
    class Some(Tamper):
        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x + (1e-3 * x[::-1] if name != "norm.weight" and step == 1 else 0)

    found = sees(tmp_path, "gradients", DP, Some())
    assert (found.step, found.tensor, found.ranks) == (1, "up.weight", (0, 1, 2))
    assert "so 2 of 3 at this step" in found.message
    assert "right at step 0" in found.message
    assert found.explanation is None  # nothing repairs it


def test_gradients_that_fail_in_two_ways_give_two_findings(tmp_path: Path) -> None:
    class Two(Tamper):
        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x * {"up.weight": 2, "down.weight": 1, "norm.weight": 0.5}[name]

    judgement, id = judged(tmp_path, TP, Two())
    found = of(judgement, id, "gradients")
    assert [finding.tensor for finding in found] == ["norm.weight", "up.weight"]
    assert [finding.scale for finding in found] == pytest.approx([0.5, 2.0])


def test_norm_gradients_that_are_never_added_up_over_tp(tmp_path: Path) -> None:
    """NVIDIA/Megatron-LM#1446: each tp rank has its part of the sequence, and takes it for the whole."""

    class NotSummed(Tamper):
        def extent(self, rank: int, kind: Kind, name: str, extent: Extent) -> Extent:
            return Extent(shape=extent.shape, boxes=extent.boxes)

    found = sees(tmp_path, "gradients", SP, NotSummed())
    assert found.tensor == "norm.weight"
    assert found.explanation is not None
    assert "held in 2 pieces by the tp ranks" in found.explanation.sentence
    assert found.explanation.after < 1e-12 < found.explanation.before
    (replica,) = of(judge(tmp_path / "run"), "tp2+sp", "replicas")
    assert replica.explanation == found.explanation


def test_gradients_that_are_never_reduced_over_data_ranks(tmp_path: Path) -> None:
    """karpathy/build-nanogpt PR#30, modelscope/FunASR PR#3472."""

    class Unreduced(Tamper):
        def reduced(self, rank: int, name: str, own: np.ndarray, reduced: np.ndarray) -> np.ndarray:
            return own

    found = sees(tmp_path, "replicas", DP, Unreduced())
    assert found.step == 0
    assert found.explanation is not None
    assert "never reduced over dp_replicate" in found.explanation.sentence


@pytest.mark.parametrize(
    ("setting", "weight", "words"),
    [
        (DP, lambda part, micro, id: float(part != 1), "the samples of data rank 1 entered with weight 0.000"),
        (DP, lambda part, micro, id: 3.0, "every sample entered with weight 3.000"),
        (
            ACCUM,
            lambda part, micro, id: [1.1, 0.9, 1.0][micro],
            "micro-batch 0 of data rank 0 entered with weight 1.100",
        ),
        (
            ACCUM,
            lambda part, micro, id: 2.0 if id == ORDER[0][5] else 1.0,
            f"sample {ORDER[0][5]} entered with weight 2",
        ),
    ],
    ids=["a rank lost", "all", "mean of means", "one twice"],
)
def test_contributions(tmp_path: Path, setting: Any, weight: Callable[..., float], words: str) -> None:
    class Weighted(Tamper):
        def weight_of(self, step: int, data_rank: int, micro: int, id: int) -> float:
            return weight(data_rank, micro, id)

    found = sees(tmp_path, "contributions", setting, Weighted())
    assert words in found.message
    assert found.explanation is not None
    assert found.explanation.after < 1e-10 < found.explanation.before


def test_contributions_skips_what_is_no_matter_of_samples(tmp_path: Path) -> None:
    class Wrong(Tamper):
        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return np.roll(x, 1, axis=0)

    judgement, id = judged(tmp_path, TP, Wrong())
    (found,) = of(judgement, id, "contributions")
    assert found.status is Status.SKIP
    assert "not which samples" in found.message


def test_additive_blames_the_recipe(tmp_path: Path) -> None:
    class BatchLoss(Tamper):
        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x * 1.16

    judgement, _ = judged(tmp_path, {}, BatchLoss())
    (found,) = of(judgement, "single", "additive")
    assert (found.status, found.blames) == (Status.FAIL, Blamed.RECIPE)
    assert judgement.verdict.blamed is Blamed.RECIPE


def test_a_rank_that_clips_by_its_own_norm(tmp_path: Path) -> None:
    """RLinf/RLinf PR#1558."""

    class LocalNorm(Tamper):
        def norm_used(self, step: int, rank: int, norm: float) -> float:
            return norm * (0.7 + 0.1 * rank)

    found = sees(tmp_path, "grad_norm", SHARD, LocalNorm())
    assert found.step == 0
    assert found.ranks == (0, 1)
    assert "each in its own way" in found.message


def test_clipping_before_unscaling(tmp_path: Path) -> None:
    """Lightning-AI/pytorch-lightning#9599: the applied norm is the limit over the loss scale."""

    class Early(Tamper):
        def applied(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x / 65536

    found = sees(tmp_path, "grad_norm", {"precision": "fp16"}, Early())
    assert found.scale == pytest.approx(1 / 65536)
    judgement = judge(tmp_path / "run")
    assert judgement.verdict.sentence == "FAIL broken: precision (alone; in fp16)"
    assert judgement.verdict.blamed is Blamed.AXIS


def test_one_rank_that_prints_a_local_norm_is_innocent(tmp_path: Path) -> None:
    """pytorch/torchtitan#766: a sharded norm's local value is printed, clipping is right."""

    class Prints(Tamper):
        def norm_printed(self, step: int, rank: int, norm: float) -> float:
            return norm * (0.6 + 0.1 * rank)

    judgement, id = judged(tmp_path, SHARD, Prints())
    (found,) = of(judgement, id, "grad_norm")
    assert found.status is Status.PASS
    assert "not the norm that it used" in found.message


def test_one_wrong_norm_on_all_ranks_is_not(tmp_path: Path) -> None:
    class Prints(Tamper):
        def norm_printed(self, step: int, rank: int, norm: float) -> float:
            return norm * 2

    assert "only what is printed is wrong" in sees(tmp_path, "grad_norm", SHARD, Prints()).message


def test_updates_sees_a_weight_that_stands_still(tmp_path: Path) -> None:
    """huggingface/accelerate#3256: an optimizer with stale parameters."""

    class Stale(Tamper):
        def moved(self, step: int, rank: int, name: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
            return before if name == "up.weight" else after

    found = sees(tmp_path, "updates", SHARD, Stale(), optimizer="AdamW")
    assert (found.step, found.tensor) == (0, "up.weight")
    assert "do not move" in found.message


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_updates_sees_a_step_that_is_too_long(tmp_path: Path, optimizer: str) -> None:
    class Long(Tamper):
        def moved(self, step: int, rank: int, name: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
            return before + 1.01 * (after - before) if name == "down.weight" and step == 1 else after

    found = sees(tmp_path, "updates", DP, Long(), optimizer=optimizer)
    assert (found.step, found.tensor) == (1, "down.weight")
    assert found.scale == pytest.approx(1.01)


def test_updates_judges_the_formula_of_a_single_alone(tmp_path: Path) -> None:
    class NoDecay(Tamper):
        def moved(self, step: int, rank: int, name: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
            return after + 0.05 * 0.1 * before

    found = sees(tmp_path, "updates", {}, NoDecay())
    assert "SGD's formula" in found.message


def test_schedule(tmp_path: Path) -> None:
    class Late(Tamper):
        def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
            return event | {"learning_rates": [0.05 if step < 2 else 0.025]}

    found = sees(tmp_path, "schedule", ACCUM, Late())
    assert (found.step, found.scale) == (2, 0.5)


def test_steps_that_one_side_skipped_are_not_compared(tmp_path: Path) -> None:
    class Skips(Tamper):
        def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
            return event | {"skipped": step == 1}

        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x * (np.inf if step == 1 else 1)

        def moved(self, step: int, rank: int, name: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
            return before if step == 1 else after

        def applied(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return np.zeros_like(x) if step == 1 else x

    with np.errstate(invalid="ignore"):
        judgement, id = judged(tmp_path, {"tp": 2, "precision": "fp16"}, Skips(), optimizer="AdamW")
    (found,) = of(judgement, id, "schedule")
    assert (found.status, found.step) == (Status.INCONCLUSIVE, 1)
    assert all(finding.status is not Status.FAIL for finding in judgement.findings), judgement.findings


def test_loss_counts_targets(tmp_path: Path) -> None:
    class Fewer(Tamper):
        def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
            return event | {"targets": event["targets"] - (rank == 1)}

    assert "targets at step 0" in sees(tmp_path, "loss", DP, Fewer()).message


def test_loss_adds_up_over_data_ranks(tmp_path: Path) -> None:
    class Off(Tamper):
        def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
            return event | {"loss_sum": event["loss_sum"] * (1 + 1e-6 * (rank == 1 and step == 3))}

    assert sees(tmp_path, "loss", DP, Off()).step == 3


def test_a_printed_loss_that_is_wrong_on_all_ranks(tmp_path: Path) -> None:
    class Prints(Tamper):
        def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
            return event | {"printed_loss": event["printed_loss"] / 3}

    found = sees(tmp_path, "loss", DP, Prints())
    assert found.scale == pytest.approx(1 / 3)


def test_a_printed_loss_of_the_rank_itself_is_innocent(tmp_path: Path) -> None:
    """aigc-apps/VideoX-Fun#222."""

    class Prints(Tamper):
        def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
            return event | {"printed_loss": event["loss_sum"] / event["targets"]}

    judgement, id = judged(tmp_path, DP, Prints())
    (found,) = of(judgement, id, "loss")
    assert found.status is Status.PASS
    assert "is not the loss of the batch" in found.message


def test_curve_needs_a_long_run_and_sees_a_shift_in_it(tmp_path: Path) -> None:
    class Worse(Tamper):
        def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
            return event | {"loss_sum": event["loss_sum"] * (1.02 if step >= 50 else 1)}

    assert sees(tmp_path, "curve", ACCUM, Worse(), steps=100).observed == pytest.approx(0.02, rel=0.1)
    judgement, id = judged(tmp_path / "healthy", ACCUM, HEALTHY, steps=100)
    assert of(judgement, id, "curve")[0].status is Status.PASS


def test_a_twin_that_differs_is_a_race(tmp_path: Path) -> None:
    class Races(Tamper):
        def gradient(self, step: int, rank: int, name: str, x: np.ndarray) -> np.ndarray:
            return x * (1 + 1e-3 * (step == 2))

    rungs = [rung(), rung(TP), rung(TP, id="tp2@again", role=Role.TWIN, twin_of="tp2")]
    judgement = judge(make_run(tmp_path / "run", rungs, {"tp2@again": Races()}))
    (found,) = of(judgement, "tp2@again", "twins")
    assert (found.status, found.blames, found.step, found.tensor) == (Status.FAIL, Blamed.RACE, 2, "norm.weight")
    assert judgement.verdict.blamed is Blamed.RACE
    assert judgement.verdict.sentence.startswith("FAIL broken: a race (tp2 differs from its own rerun at step 2")


def test_only_a_cold_twin_that_differs_is_the_launcher(tmp_path: Path) -> None:
    class Differs(Tamper):
        def moved(self, step: int, rank: int, name: str, before: np.ndarray, after: np.ndarray) -> np.ndarray:
            return after * (1 + 2**-52)

    single = rung()
    again, cold = (
        rung(id=f"single@{name}", role=Role.TWIN, twin_of="single", cold=name == "cold") for name in ("again", "cold")
    )
    judgement = judge(make_run(tmp_path / "run", [single, again, cold, rung(TP)], {"single@cold": Differs()}))
    assert of(judgement, "single@again", "twins")[0].status is Status.PASS
    assert of(judgement, "single@cold", "twins")[0].blames is Blamed.LAUNCHER
    assert judgement.verdict.blamed is Blamed.LAUNCHER


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda rank, header: header | {"world_size": 2}, "ranks 0, 1 and 2 started in a world of 2"),
        (lambda rank, header: header | {"device": "cuda:0"}, "ranks 0, 1 and 2 share cuda:0"),
        (lambda rank, header: header | {"coordinates": {"dp_replicate": 0}}, "rank 1 is at 0 on dp_replicate"),
    ],
    ids=["several worlds", "one device", "coordinates"],
)
def test_launch(tmp_path: Path, change: Callable[..., dict[str, Any]], words: str) -> None:
    class Header(Tamper):
        def header(self, rank: int, header: dict[str, Any]) -> dict[str, Any]:
            return change(rank, header)

    found = sees(tmp_path, "launch", DP, Header())
    assert words in found.message
    assert found.blames is Blamed.LAUNCHER
    assert judge(tmp_path / "run").verdict.blamed is Blamed.LAUNCHER


def test_ranks_that_each_see_one_device_may_all_call_it_the_same(tmp_path: Path) -> None:
    class Header(Tamper):
        def header(self, rank: int, header: dict[str, Any]) -> dict[str, Any]:
            return header | {"device": "cuda:0", "device_id": f"GPU-{rank}"}

    judgement, id = judged(tmp_path, DP, Header())
    assert of(judgement, id, "launch")[0].status is Status.PASS


def test_a_host_whose_ranks_think_they_are_alone(tmp_path: Path) -> None:
    """k2-fsa/icefall#1616: on one node the sampler does not see the others."""

    class Alone(Tamper):
        def header(self, rank: int, header: dict[str, Any]) -> dict[str, Any]:
            return header | {"host": f"n{rank // 2}"}

        def ids(self, step: int, rank: int, ids: list[int]) -> list[int]:
            return ORDER[step][: len(ids)] if rank >= 2 else ids

    rungs = [rung(), rung({"dp_replicate": 4}), rung({"dp_shard": 4})]
    judgement = judge(make_run(tmp_path / "run", rungs, {each.id: Alone() for each in rungs[1:]}))
    assert of(judgement, "dp_shard4", "samples")[0].hosts == ("n1",)
    assert judgement.verdict.blamed is Blamed.HOST
    assert judgement.verdict.sentence == ("FAIL broken: host n1 (wherever it takes part: dp_replicate4, dp_shard4)")


class _Off(Tamper):
    """Says that it is on, and is not."""

    def ids(self, step: int, rank: int, ids: list[int]) -> list[int]:
        return ORDER[step]

    def extent(self, rank: int, kind: Kind, name: str, extent: Extent) -> Extent:
        return Extent.full(extent.shape)

    def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
        return event | {"micro_batches": [event["ids"]]}


@pytest.mark.parametrize("setting", [TP, DP, SHARD, ACCUM], ids=str)
def test_engaged(tmp_path: Path, setting: Mapping[str, Any]) -> None:
    found = sees(tmp_path, "engaged", setting, _Off())
    assert found.message.startswith(f"{next(iter(setting))} is not on")


def test_engaged_looks_at_matrix_products(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [rung(), rung({"precision": "bf16"})])
    for events in (run / "rungs" / "bf16").glob("*.jsonl"):
        events.write_text(events.read_text().replace('"matmul_dtypes":["bfloat16"]', '"matmul_dtypes":["float32"]'))
    (found,) = of(judge(run), "bf16", "engaged")
    assert found.status is Status.FAIL
    assert "float32, not in bfloat16" in found.message


@pytest.mark.parametrize(
    ("state", "status", "words"),
    [
        ("failed", Status.FAIL, "rank 1, exit code 1 failed in step 4: ValueError: no"),
        ("timed_out", Status.FAIL, "did not end in time"),
        ("lost", Status.INCONCLUSIVE, "the job was lost"),
        ("cancelled", Status.INCONCLUSIVE, "the job was cancelled"),
        ("exploded", Status.INCONCLUSIVE, "not known: 'exploded'"),
    ],
)
def test_completes(tmp_path: Path, state: str, status: Status, words: str) -> None:
    run = tmp_path / "run"
    write_plan(run, [rung(), rung(TP)])
    World(rung(), run / "rungs" / "single").run()
    world = World(rung(TP), run / "rungs" / "tp2")
    world.run()
    bad = {"rank": 1, "code": 1, "signal": None, "error": "Traceback\n  x\nValueError: no\n"}
    world.exit(state=state, first_failed=1, ranks=[{"rank": 0}, bad])
    (found,) = of(judge(run), "tp2", "completes")
    assert found.status is status
    assert words in found.message


def test_completes_counts_steps(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_plan(run, [rung(steps=4), rung(TP, steps=4)])
    World(rung(steps=4), run / "rungs" / "single").run()
    World(rung(TP, steps=3), run / "rungs" / "tp2").run()
    (found,) = of(judge(run), "tp2", "completes")
    assert (found.status, found.message) == (Status.FAIL, "all ranks ended well after 3 of 4 steps")


# NaN is never within tolerance


@pytest.mark.parametrize("method", ["gradient", "moved", "output", "norm_used", "event", "applied", "initial"])
@pytest.mark.parametrize("setting", [DP, {"tp": 2, "precision": "bf16"}], ids=str)
def test_nan_anywhere_is_never_a_pass(tmp_path: Path, method: str, setting: Mapping[str, Any]) -> None:
    class Nan(Tamper):
        pass

    def poison(self: Tamper, *args: Any) -> Any:
        last = args[-1]
        if isinstance(last, dict):
            return last | {"loss_sum": math.nan}
        return last * math.nan

    setattr(Nan, method, poison)
    with np.errstate(all="ignore"):
        judgement, id = judged(tmp_path, setting, Nan())
    result = next(each for each in judgement.rungs if each.rung.id == id)
    assert result.status is not Status.PASS
    assert judgement.verdict.status is not Status.PASS
    assert not any("the check broke" in finding.message for finding in judgement.findings), judgement.findings


def test_the_tiny_world_shards_what_it_says() -> None:
    world = World(rung({"dp_shard": 2, "tp": 2}), Path("unused"))
    for name in SHAPES:
        boxes = {world.extent(rank, Kind.WEIGHT, name).boxes[0] for rank in range(4)}
        assert len(boxes) == (4 if name != "norm.weight" else 2)
    assert Setting({"tp": 2}).name == "tp2"
