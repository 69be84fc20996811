"""References come first, neighbours are there for blame, and what is dropped keeps its reason."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest

from dist_checks.axes import SPEC, Axis, Setting
from dist_checks.matrix import ConfigError, parse, preset
from dist_checks.plan import Plan, make
from dist_checks.refusals import Facts
from dist_checks.rung import Role
from dist_checks.selection import choose

LENGTH = {"sequence length": 32}
FACTS = Facts.from_json({"divisors": {"tp": {"heads": 4}, "sp": LENGTH, "cp": LENGTH}, "frameworks": ["deepspeed"]})


def plan(axes: dict[str, Any], devices: int = 8, **matrix: Any) -> Plan:
    return make(parse({"axes": axes, **matrix}), FACTS, devices)


@functools.cache  # that of nightly takes ten seconds
def of_preset(name: str) -> Plan:
    chosen = preset(name)
    facts = Facts.from_json({**FACTS.description, "samples": chosen.options["samples"]})
    return make(chosen, dict.fromkeys(chosen.ladders, facts), 8)


def ids(plan: Plan) -> list[str]:
    return [rung.id for rung in plan.rungs]


def test_the_smallest_ladder() -> None:
    assert ids(plan({"tp": 2})) == ["single", "tp2", "single@again", "tp2@cold"]
    assert ids(plan({"tp": 2}, launch={"cold_twin": False})) == ["single", "tp2", "single@again"]
    assert ids(plan({})) == ["single", "overfit", "learn", "single@again"], (
        "alone, one device is asked whether it is healthy"
    )
    assert ids(plan({}, single={"learn": 0, "overfit": 0})) == ["single", "single@again"]
    assert ids(plan({"tp": 2}, single={"learn": 9})) == ["single", "learn", "tp2", "single@again", "tp2@cold"]


def test_references() -> None:
    by_id = {rung.id: rung for rung in plan({"tp": 2, "precision": "bf16"}).rungs}
    assert by_id["single"].truth is None
    assert (by_id["bf16"].role, by_id["bf16"].reference, by_id["bf16"].truth) == (Role.SINGLE, None, "single")
    assert (by_id["tp2"].reference, by_id["tp2"].truth, by_id["tp2"].precision) == ("single", "single", "fp64")
    assert (by_id["tp2+bf16"].reference, by_id["tp2+bf16"].truth) == ("bf16", "single")


def test_native_precision_has_its_own_truth() -> None:
    by_id = {rung.id: rung for rung in plan({"tp": 2, "precision": "bf16"}, exact=False).rungs}
    assert by_id["single"].precision == "fp32"
    assert by_id["single"].truth == by_id["bf16"].truth == by_id["tp2"].truth == "fp64"
    assert by_id["fp64"].role is Role.SINGLE
    assert by_id["tp2"].reference == "single"


def test_torch_has_no_fused_sgd_for_dtensors() -> None:
    axes = {"tp": 2, "accum": 2, "fused": True}
    assert "tp2+fused" in ids(plan(axes))
    found = plan(axes, train={"optimizer": "sgd"})
    assert "accum2+fused" in ids(found)
    [refused] = [skip for skip in found.skipped if skip.name == "tp2+fused"]
    assert refused.reason == "fused with train.optimizer sgd cannot be combined with tp: torch has none for DTensors"


def test_resuming() -> None:
    """What is refused is so by the length of the run, and by what the layout in between cannot do."""
    facts = Facts.from_json({**FACTS.description, "samples": 61})
    axes = {"dp_replicate": 3, "zero": [1, "redundancy"], "resume": ["same", "other"]}
    found = make(parse({"axes": axes, "steps": 4, "combine": {"mode": "pairs", "most": 3}}), facts, 8)
    by_id = {rung.id: rung for rung in found.rungs}
    assert by_id["dp_replicate3+resume_other"].restarts == (1, 3)
    assert by_id["dp_replicate3"].restarts == ()
    assert by_id["dp_replicate3+resume_other"].reference == "single"
    assert by_id["resume_other"].devices == 2
    assert not any(rung.restarts for rung in found.rungs if rung.role is not Role.RUNG)
    [refused] = [skip for skip in found.skipped if skip.name == "dp_replicate3+zero1+resume_other"]
    assert refused.reason.startswith(
        "resume_other cannot be combined with zero 1 to 3: DeepSpeed loads partitions only"
    )
    with pytest.raises(
        ConfigError, match=r"axes.resume\[0\]: resume needs at least 4 steps, not 3: it goes on inside of"
    ):
        make(parse({"axes": {"resume": "same"}, "steps": 3}), facts, 8)
    with pytest.raises(
        ConfigError, match="goes on as dp_replicate2 in between: a world of 2 ranks is larger than the 1"
    ):
        make(parse({"axes": {"resume": "other"}, "steps": 4}), facts, 1)


def test_references_come_first() -> None:
    seen: set[str] = set()
    for rung in of_preset("quick").rungs:
        assert {id for id in (rung.reference, rung.truth, rung.twin_of) if id} <= seen
        seen.add(rung.id)


def test_the_quick_preset_has_every_axis_but_those_of_the_user() -> None:
    rungs = of_preset("quick").rungs
    assert {axis for rung in rungs for axis in rung.setting} == set(Axis) - {Axis.CUSTOM}
    assert sum(rung.planned and rung.role is Role.RUNG for rung in rungs) >= 24


def test_pairs_cover_every_pair_that_can_run() -> None:
    nightly = of_preset("nightly")
    settings = [rung.setting for rung in nightly.rungs]
    dropped = {skip.setting for skip in nightly.skipped}
    values = [(axis, value) for axis, many in preset("nightly").axes.items() for value in many]
    for one, two in itertools.combinations(values, 2):
        if one[0] == two[0]:
            continue
        pair = Setting(dict((one, two)))
        covered = any(pair.items() <= setting.items() for setting in settings)
        needed = {need: preset("nightly").axes[need][0] for axis in pair for need in SPEC[axis].needs}
        standing = Setting({**needed, **pair})
        assert covered != (standing in dropped), pair


@pytest.mark.parametrize("name", ["quick", "nightly", "signoff"])
def test_every_planned_rung_has_its_neighbours(name: str) -> None:
    rungs = of_preset(name).rungs
    settings = {(rung.recipe, rung.setting) for rung in rungs}
    for rung in rungs:
        if rung.planned:
            assert {(rung.recipe, near) for near in rung.setting.neighbours().values()} <= settings


def test_at_most_three_structural_axes() -> None:
    included = set(preset("nightly").included)
    rungs = [rung for rung in of_preset("nightly").rungs if rung.planned and rung.setting not in included]
    assert max(len(rung.setting.structural) for rung in rungs) == 3


def test_all_is_every_combination() -> None:
    everything = plan({"dp_replicate": 3, "tp": 2, "accum": 5}, combine={"mode": "all"}, launch={"cold_twin": False})
    assert len(ids(everything)) == 2**3 + 1


def test_one_at_a_time() -> None:
    axes = {"dp_replicate": 3, "tp": 2, "sp": True}
    singles = plan(axes, combine={"mode": "singles"}, launch={"cold_twin": False})
    assert ids(singles) == ["single", "tp2", "dp_replicate3", "tp2+sp", "single@again"]


@pytest.mark.parametrize(
    ("axes", "devices", "line"),
    [
        ({"tp": 3}, 8, "axes.tp[0]: tp degree (3) must divide the recipe's heads (4)"),
        ({"cp": 5}, 8, "axes.cp[0]: cp degree (5) must divide the recipe's sequence length (32)"),
        ({"dp_shard": [2, 16]}, 8, "axes.dp_shard[1]: a world of 16 ranks is larger than the 8 devices"),
        (
            {"accum": 40},
            8,
            "axes.accum[0]: 1 data ranks with 40 micro-batches each need 40 samples, and the smallest batch has 31",
        ),
    ],
)
def test_a_value_that_cannot_run_alone_is_an_error(axes: dict[str, Any], devices: int, line: str) -> None:
    with pytest.raises(ConfigError) as refused:
        plan(axes, devices)
    assert str(refused.value).startswith(line)


def test_an_axis_that_the_recipe_has_no_seam_for() -> None:
    facts = Facts.from_json({"lacking": {"cp": "needs a recipe with split_sequence; mine has none"}})
    made = make(parse({"axes": {"cp": 2, "tp": 2}}), facts, 8)
    assert "tp2" in ids(made)
    assert not any("cp2" in rung.id for rung in made.rungs)
    reasons = {skip.name: skip.reason for skip in made.skipped}
    assert reasons["cp2"] == reasons["cp2+tp2"] == "cp needs a recipe with split_sequence; mine has none"


def test_parts_that_two_axes_cut_one_after_the_other() -> None:
    dropped = plan({"cp": 8, "tp": [2, 4], "sp": True}, devices=64, combine={"mode": "all"}).skipped
    assert not dropped
    facts = Facts.from_json({"divisors": {"sp": {"sequence length": 36}, "cp": {"sequence length": 36}}})
    included = {"mode": "singles", "include": ["cp2+tp4+sp"]}
    with pytest.raises(ConfigError, match=r"cp x tp degree \(2 x 4\) must divide the recipe's sequence length \(36\)"):
        make(parse({"axes": {"cp": 2, "tp": 4, "sp": True}, "combine": included}), facts, 8)


def test_dropped_combinations_keep_their_reason() -> None:
    reasons = {
        skip.setting.name: skip.reason for skip in plan({"dp_replicate": 3, "dp_shard": [3, 2], "tp": 2}).skipped
    }
    assert reasons == {
        "dp_replicate3+dp_shard3": "a world of 9 ranks is larger than the 8 devices",
        "dp_shard2+tp2": "dp_shard and tp have the same degree (2): their groups could be confused, "
        "and dp_shard has other degrees",
    }


def test_the_last_batch_of_an_epoch_counts() -> None:
    facts = Facts.from_json({"samples": 3 * 31 + 14})
    dropped = make(parse({"axes": {"dp_replicate": 3, "accum": 5}}), facts, 8).skipped
    assert [skip.reason for skip in dropped] == [
        "3 data ranks with 5 micro-batches each need 15 samples, and the smallest batch has 14"
    ]


def test_equal_degrees_run_where_the_matrix_has_no_others() -> None:
    assert "dp_shard2+tp2" in ids(plan({"dp_shard": 2, "tp": 2}))


def test_included() -> None:
    with_it = plan({"tp": 2}, combine={"mode": "singles", "include": ["dp_replicate2+tp2+accum3"]})
    assert [rung.id for rung in with_it.rungs if rung.planned and rung.role is Role.RUNG] == [
        "tp2",
        "dp_replicate2+tp2+accum3",
    ]
    assert {"tp2+accum3", "dp_replicate2+accum3", "dp_replicate2+tp2"} <= set(ids(with_it))
    with pytest.raises(ConfigError, match=r"combine.include\[0\]: tp degree \(3\) must divide"):
        plan({"tp": 2}, combine={"include": ["tp3"]})


def test_excluded() -> None:
    without = plan({"tp": 2, "accum": 5}, combine={"exclude": ["tp2+accum5"]})
    assert "tp2+accum5" not in ids(without)
    assert [skip.reason for skip in without.skipped] == ["combine.exclude has tp2+accum5"]


def test_seeds() -> None:
    two = plan({"tp": 2}, seeds=[3, 7], launch={"cold_twin": False})
    assert ids(two) == ["single", "single@seed7", "tp2", "single@again", "tp2@seed7"]
    by_id = {rung.id: rung for rung in two.rungs}
    assert by_id["tp2@seed7"].reference == "single@seed7"
    assert by_id["tp2@seed7"].seed == 7


def test_a_selection_brings_its_references_and_neighbours() -> None:
    full = plan({"dp_replicate": 3, "tp": 2, "accum": 5, "precision": "bf16"}, seeds=[1])
    chosen = full.only(choose("tp2+bf16", ids(full)))
    assert set(ids(chosen)) == {"single", "bf16", "tp2", "tp2+bf16"}
    assert Axis.TP in chosen.rungs[-1].setting


MOE = Facts.from_json({"divisors": {"ep": {"experts": 4}, "tp": {"heads": 4}}})


def two(first: dict[str, Any], **also: Any) -> Plan:
    matrix = parse({"axes": first, "launch": {"cold_twin": False}, "also": [{"recipe": "moe", **also}]})
    return make(matrix, {"": FACTS, "moe": MOE}, 8)


def test_a_second_recipe_has_a_single_of_its_own() -> None:
    both = two({"tp": 2, "precision": "bf16"}, axes={"ep": 2, "precision": "bf16"})
    singles = ["single", "bf16", "single@moe", "bf16@moe"]
    assert ids(both)[:4] == singles
    assert set(ids(both)[4:]) == {
        *("tp2", "tp2+bf16", "single@again"),
        *("ep2@moe", "ep2+bf16@moe", "single@moe@again"),
    }
    by_id = {rung.id: rung for rung in both.rungs}
    assert (by_id["ep2+bf16@moe"].reference, by_id["ep2+bf16@moe"].truth) == ("bf16@moe", "single@moe")
    assert {rung.recipe for rung in both.rungs if "@moe" in rung.id} == {"moe"}
    assert {rung.recipe for rung in both.rungs if "@moe" not in rung.id} == {""}


def test_a_selection_of_a_second_recipe_stays_within_it() -> None:
    both = two({"tp": 2}, axes={"ep": 2, "tp": 2}, combine={"include": ["ep2+tp2"]})
    assert set(ids(both.only({"ep2+tp2@moe"}))) == {"single@moe", "ep2@moe", "tp2@moe", "ep2+tp2@moe"}
    assert set(ids(both.only({"tp2"}))) == {"single", "tp2"}
    assert set(ids(both.only(choose("@moe and not tp2", ids(both))))) == {"single@moe", "ep2@moe", "single@moe@again"}


def test_seeds_of_a_second_recipe() -> None:
    matrix = parse({"axes": {}, "seeds": [3, 7], "also": [{"recipe": "moe", "axes": {"ep": 2}}]})
    by_id = {rung.id: rung for rung in make(matrix, {"": FACTS, "moe": MOE}, 8).rungs}
    assert by_id["ep2@moe@seed7"].reference == "single@moe@seed7"


def test_what_a_second_recipe_cannot_run_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^also\[0\].axes.ep\[1\]: ep degree \(3\) must divide the recipe's experts"):
        two({"tp": 2}, axes={"ep": [2, 3]})
    dropped = two({"tp": 2}, axes={"ep": 2, "tp": [2, 4], "dp_replicate": 3}).to_json()["skipped"]
    assert {"name": "ep2+tp2@moe", "recipe": "moe"}.items() <= dropped[0].items()


ZERO = {"dp_replicate": 3, "zero": [1, 2, 3, "redundancy"]}


def test_zero_is_compared_in_float32_where_the_others_are_exact() -> None:
    by_id = {rung.id: rung for rung in plan({**ZERO, "precision": ["bf16", "fp16"]}).rungs}
    for stage in (1, 2, 3):
        rung = by_id[f"dp_replicate3+zero{stage}"]
        assert (rung.precision, rung.reference, rung.truth) == ("fp32", "fp32", "single")
        rung = by_id[f"dp_replicate3+zero{stage}+bf16"]
        assert (rung.precision, rung.reference, rung.truth) == ("bf16", "bf16_params", "single")
    rung = by_id["dp_replicate3+zeroredundancy"]
    assert (rung.precision, rung.reference) == ("fp64", "single")
    assert by_id["dp_replicate3+zeroredundancy+fp16"].reference == "fp16"
    for single in ("fp32", "bf16_params", "fp16_params"):
        assert (by_id[single].role, by_id[single].precision) == (Role.SINGLE, single)
    assert by_id["dp_replicate3"].precision == "fp64"


def test_zero_where_nothing_is_exact() -> None:
    by_id = {rung.id: rung for rung in plan(ZERO, exact=False).rungs}
    rung = by_id["dp_replicate3+zero1"]
    assert (rung.precision, rung.reference, rung.truth) == ("fp32", "single", "fp64")
    assert "fp32" not in by_id


def test_zero_needs_deepspeed() -> None:
    without = Facts.from_json({})
    with pytest.raises(ConfigError) as refused:
        make(parse({"axes": {"dp_replicate": 3, "zero": [1]}}), without, 8)
    assert str(refused.value) == (
        "axes.zero[0]: zero 1 to 3 need DeepSpeed, which cannot be imported where ranks run: "
        "pip install 'dist-checks[deepspeed]'"
    )
    assert make(parse({"axes": {"dp_replicate": 3, "zero": "redundancy"}}), without, 8).rungs


@pytest.mark.parametrize(
    ("axes", "matrix", "setting", "reason"),
    [
        ({"dp_shard": 2}, {}, "dp_replicate3+dp_shard2+zero1", "both partition what replicas hold"),
        ({"tp": 2}, {}, "dp_replicate3+tp2+zero2", "zero cannot be combined with tp"),
        ({"precision": "fp32"}, {}, "dp_replicate3+zero1+fp32", "this would be the same again"),
        ({"precision": "fp64"}, {"exact": False}, "dp_replicate3+zero1+fp64", "DeepSpeed keeps float32 weights"),
        ({"precision": "bf16_params"}, {}, "dp_replicate3+bf16_params", "bf16_params is for one device"),
    ],
)
def test_what_zero_cannot_be_combined_with(
    axes: dict[str, Any], matrix: dict[str, Any], setting: str, reason: str
) -> None:
    made = plan({**ZERO, **axes}, **matrix)
    assert setting not in ids(made)
    assert reason in {skip.setting.name: skip.reason for skip in made.skipped}[setting]
