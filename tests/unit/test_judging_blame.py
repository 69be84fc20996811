"""Blame finds what was planted: minimal sets of axes, or what else is at fault."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_world import rung

from dist_checks.axes import SPEC, Axis, Setting
from dist_checks.judging.blame import blame
from dist_checks.judging.outcome import Outcome
from dist_checks.judging.verdict import Blamed, Explanation, Finding, Status
from dist_checks.rung import Role, Rung

VALUES: dict[Axis, tuple[Any, ...]] = {
    Axis.DP_REPLICATE: (3,),
    Axis.DP_SHARD: (2,),
    Axis.TP: (2, 4),
    Axis.SP: (True,),
    Axis.ACCUM: (5,),
    Axis.PRECISION: ("bf16",),
}


def every_setting() -> list[Setting]:
    choices = [[(axis, value) for value in (SPEC[axis].off, *values)] for axis, values in VALUES.items()]
    found = {Setting(dict(each)) for each in itertools.product(*choices)}
    return sorted((s for s in found if Axis.SP not in s or Axis.TP in s), key=lambda s: (len(s), s.name))


EVERYTHING = every_setting()


def finding(rung: Rung, status: Status = Status.FAIL, **fields: Any) -> Finding:
    given = {"check": "gradients", "message": "off", "step": 0} | fields
    return Finding(rung=rung.id, status=status, **given)


def outcome(rung: Rung, status: Status = Status.PASS, on: tuple[str, ...] = ("h",), **fields: Any) -> Outcome:
    """Of a rung that ran on the hosts ``on``, with one finding."""
    return Outcome(rung=rung, findings=(finding(rung, status, **fields),), hosts=on)


def ladder(
    failing: Iterable[Mapping[str, Any]], settings: Iterable[Setting] = EVERYTHING, **other: Any
) -> list[Outcome]:
    """Every setting that has all of one of ``failing`` on fails; ``other`` are statuses by rung id."""
    bad = [Setting(each) for each in failing]
    out = []
    for each in settings:
        fails = any(one.items() <= each.items() for one in bad)
        status = other.get(each.name, Status.FAIL if fails else Status.PASS)
        out.append(outcome(rung(dict(each)), status))
    return out


def test_one_axis_alone_and_two_only_together() -> None:
    verdict = blame(ladder([{"tp": 2}, {"tp": 4}, {"dp_replicate": 3, "accum": 5}]))
    assert verdict.sentence == "FAIL broken: tp (alone); dp_replicate x accum (only together)"
    assert verdict.blamed is Blamed.AXIS
    first, second = verdict.broken
    assert (first.axes, first.decided, first.first.rung) == (["tp"], True, "tp2")
    assert second.axes == ["accum", "dp_replicate"]
    assert second.setting.to_json() == {"dp_replicate": 3, "accum": 5}
    assert "tp2+accum5" in first.rungs
    assert "dp_replicate3+accum5" in second.rungs


def test_an_axis_that_cannot_stand_alone() -> None:
    verdict = blame(ladder([{"sp": True}]))
    assert verdict.sentence == "FAIL broken: sp (alone)"
    assert verdict.broken[0].first.rung == "tp2+sp"


def test_a_degree_that_fails_where_another_passes() -> None:
    verdict = blame(ladder([{"tp": 4}]))
    assert verdict.sentence == "FAIL broken: tp (alone; 4 fails, 2 passes)"
    assert verdict.broken[0].setting.to_json() == {"tp": 4}


def test_a_neighbour_that_was_lost_leaves_it_undecided() -> None:
    verdict = blame(ladder([{"dp_replicate": 3, "accum": 5}], accum5=Status.INCONCLUSIVE))
    (broken,) = [broken for broken in verdict.broken if not broken.decided]
    assert verdict.status is Status.FAIL
    assert "not decided: accum5 is inconclusive" in verdict.sentence
    assert broken.axes == ["accum"]  # without dp_replicate nothing is known; without accum it passes


def test_a_neighbour_that_was_not_run_leaves_it_undecided() -> None:
    wanted = [Setting(), Setting({"dp_replicate": 3}), Setting({"dp_replicate": 3, "accum": 5})]
    verdict = blame(ladder([{"dp_replicate": 3, "accum": 5}], wanted))
    assert verdict.sentence == "FAIL broken: accum (not decided: accum5 was not run: it would decide)"
    assert not verdict.broken[0].decided


def test_a_single_that_fails_comes_first() -> None:
    verdict = blame(ladder([{}]))
    assert verdict.blamed is Blamed.RECIPE
    assert verdict.broken == ()
    assert verdict.sentence.startswith("FAIL broken: the recipe on one device (gradients of single)")


def test_numbers_that_fail_on_one_device_are_an_axis() -> None:
    verdict = blame(ladder([{"precision": "bf16"}]))
    assert verdict.sentence == "FAIL broken: precision (alone; in bf16)"
    assert verdict.broken[0].setting.to_json() == {"precision": "bf16"}
    assert "tp2+bf16" in verdict.broken[0].rungs


def test_axes_that_break_only_in_narrow_numbers() -> None:
    verdict = blame(ladder([{"tp": 2, "precision": "bf16"}]))
    assert verdict.sentence == "FAIL broken: tp x precision (only together; in bf16)"


def test_the_plain_single_of_a_native_matrix_is_judged_by_the_truth() -> None:
    truth = rung({"precision": "fp64"}, truth=None)
    plain = rung(precision="fp32", truth=truth.id)
    other = rung({"tp": 2}, precision="fp32", reference=plain.id, truth=truth.id)
    verdict = blame([outcome(truth), outcome(plain, Status.FAIL), outcome(other, Status.FAIL)])
    assert verdict.sentence == "FAIL broken: precision (alone; in fp32)"


# Others than axes


def test_the_launcher() -> None:
    one, two = rung(), rung({"tp": 2})
    verdict = blame([outcome(one), outcome(two, Status.FAIL, check="launch", blames=Blamed.LAUNCHER)])
    assert (verdict.blamed, verdict.broken) == (Blamed.LAUNCHER, ())
    assert verdict.sentence == "FAIL broken: the launcher (launch of tp2)"


def test_a_race_is_no_fault_of_an_axis() -> None:
    one, two = rung(), rung({"tp": 2})
    again = rung({"tp": 2}, id="tp2@again", role=Role.TWIN, twin_of="tp2")
    race = outcome(again, Status.FAIL, check="twins", blames=Blamed.RACE, step=3, tensor="w")
    verdict = blame([outcome(one), outcome(two, Status.FAIL), race])
    assert (verdict.blamed, verdict.broken) == (Blamed.RACE, ())
    assert verdict.sentence == "FAIL broken: a race (tp2 differs from its own rerun at step 3 in w)"


def test_a_twin_that_fails_as_its_rung_does_accuses_nobody() -> None:
    two = rung({"tp": 2})
    again = rung({"tp": 2}, id="tp2@again", role=Role.TWIN, twin_of="tp2")
    verdict = blame([outcome(rung()), outcome(two, Status.FAIL), outcome(again, Status.FAIL)])
    assert verdict.sentence == "FAIL broken: tp (alone)"


def test_a_host_that_fails_under_axes_with_nothing_in_common() -> None:
    both = ("n1", "n2")
    outcomes = [outcome(rung(), on=("n1",))]
    for setting in ({"dp_replicate": 3}, {"dp_shard": 2}):
        outcomes.append(outcome(rung(setting), Status.FAIL, both, check="samples", hosts=("n2",)))
    verdict = blame(outcomes)
    assert (verdict.blamed, verdict.broken) == (Blamed.HOST, ())
    assert verdict.sentence == "FAIL broken: host n2 (wherever it takes part: dp_replicate3, dp_shard2)"


def test_failures_that_follow_a_host_are_no_race_and_no_axis() -> None:
    """The rerun of the single is on the same host as two rungs of several axes; without it such rungs pass."""
    single = rung()
    again = Rung.from_json(single.to_json() | {"id": "single@again", "role": "twin", "twin_of": "single"})
    outcomes = [
        outcome(single, on=("n1",)),
        outcome(again, Status.FAIL, ("n3",), check="twins", blames=Blamed.RACE),
        outcome(rung({"dp_replicate": 3}), Status.FAIL, ("n1", "n3")),
        outcome(rung({"tp": 2}), Status.FAIL, ("n2", "n3")),
        outcome(rung({"dp_shard": 2}), Status.PASS, ("n1", "n2")),
    ]
    verdict = blame(outcomes)
    assert verdict.blamed is Blamed.HOST
    assert verdict.sentence.startswith("FAIL broken: host n3 (in all 3 rungs that fail and in none that passes: ")
    assert blame(outcomes[:4]).blamed is not Blamed.HOST, "no rung of several ranks passes: it may be all they do"


@pytest.mark.parametrize(("check", "blamed"), [("twins", Blamed.HOST), ("gradients", Blamed.AXIS)])
def test_a_rung_that_passes_on_other_nodes(check: str, blamed: Blamed) -> None:
    """Its rerun differs in bits, and in nothing else; where it fails as well, the axis is to blame."""
    wrong = rung({"dp_shard": 2})
    again = Rung.from_json(wrong.to_json() | {"id": "dp_shard2@again", "role": "twin", "twin_of": wrong.id})
    outcomes = [
        outcome(rung(), on=("n1",)),
        outcome(wrong, Status.FAIL, ("n3",)),
        outcome(again, Status.FAIL, ("n1",), check=check, blames=Blamed.RACE if check == "twins" else None),
        outcome(rung({"tp": 2}), on=("n2",)),
    ]
    verdict = blame(outcomes)
    assert verdict.blamed is blamed, verdict.sentence
    if blamed is Blamed.HOST:
        assert verdict.sentence == "FAIL broken: host n3 (dp_shard2 fails there and passes on n1)"


def test_an_axis_that_all_failing_rungs_share_is_no_host() -> None:
    outcomes = [
        outcome(rung(), on=("n1",)),
        outcome(rung({"tp": 2}), Status.FAIL, ("n3",)),
        outcome(rung({"tp": 2, "accum": 5}), Status.FAIL, ("n3",)),
        outcome(rung({"dp_shard": 2}), Status.PASS, ("n1",)),
    ]
    assert blame(outcomes).blamed is Blamed.AXIS


def test_one_failing_rung_is_not_yet_a_host() -> None:
    failing = outcome(rung({"tp": 2}), Status.FAIL, ("n1", "n2"))
    assert blame([outcome(rung()), failing]).blamed is Blamed.AXIS


# What is not a pass


@pytest.mark.parametrize(
    ("outcomes", "sentence"),
    [
        ([], "INCONCLUSIVE no rung was run"),
        ([outcome(rung())], "INCONCLUSIVE one device alone: there was nothing to compare it with"),
        (
            [outcome(rung()), outcome(rung({"tp": 2}), Status.INCONCLUSIVE, check="completes")],
            "INCONCLUSIVE 0 of 1 rung equal to one device; not decided: tp2 (completes)",
        ),
        (
            [outcome(rung()), outcome(rung({"tp": 2}), Status.SKIP)],
            "INCONCLUSIVE 0 of 1 rung equal to one device; not decided: tp2 (gradients)",
        ),
        ([Outcome(rung=rung({"tp": 2}), findings=())], "INCONCLUSIVE 0 of 1 rung equal to one device; not decided: "),
    ],
    ids=["no rungs", "only the truth", "lost", "all skipped", "no findings"],
)
def test_absence_is_never_a_pass(outcomes: list[Outcome], sentence: str) -> None:
    verdict = blame(outcomes)
    assert verdict.status is Status.INCONCLUSIVE
    assert verdict.sentence.startswith(sentence)


def test_pass() -> None:
    assert blame(ladder([], [Setting(), Setting({"tp": 2}), Setting({"accum": 5})])).sentence == (
        "PASS 2 rungs equal to one device"
    )
    narrow = [outcome(rung()), outcome(rung({"precision": "bf16"}))]
    assert blame(narrow).sentence == "PASS 1 single equal to float64 up to rounding"


def test_a_lost_neighbour_that_nobody_asked_for_is_no_matter_where_all_passes() -> None:
    lost = rung({"accum": 5}, planned=False)
    outcomes = [outcome(rung()), outcome(rung({"tp": 2})), outcome(lost, Status.INCONCLUSIVE)]
    assert blame(outcomes).status is Status.PASS


# The first finding


def test_the_first_finding_is_the_cause_not_the_effect() -> None:
    two = rung({"tp": 2})
    findings = (
        finding(two, check="completes", step=3),
        finding(two, check="gradients", step=1),
        finding(two, check="updates", step=0),
        finding(two, check="forward", step=1),
        finding(two, check="samples", step=0, status=Status.PASS),
    )
    first = Outcome(rung=two, findings=findings).first
    assert first is not None
    assert first.check == "updates"


def test_the_explanation_of_the_same_step_is_told_with_the_first_finding() -> None:
    two = rung({"tp": 2})
    explanation = Explanation(sentence="twice", before=1.0, after=0.0)
    findings = (finding(two, check="forward"), finding(two, check="gradients", explanation=explanation))
    verdict = blame([outcome(rung()), Outcome(rung=two, findings=findings)])
    assert verdict.broken[0].to_json()["explanation"] == "twice"
    assert verdict.broken[0].to_json()["check"] == "forward"


# Any planted set is found


@st.composite
def planted(draw: st.DrawFn) -> list[Setting]:
    """One to three sets of axes with values, none of which contains another, each of which some rung can have."""
    sets: list[Setting] = []
    for _ in range(draw(st.integers(1, 3))):
        axes = draw(st.sets(st.sampled_from([*VALUES]), min_size=1, max_size=3))
        # sp cannot be on without tp: a fault of both is a fault of sp, or one of sp at a degree of tp.
        if Axis.SP in axes:
            axes -= {Axis.TP}
        new = Setting({axis: draw(st.sampled_from(VALUES[axis])) for axis in axes})
        if not any(new.items() <= old.items() or old.items() <= new.items() for old in sets):
            sets.append(new)
    return sets


@given(planted())
@settings(max_examples=60, deadline=None)
def test_blame_finds_exactly_what_was_planted(sets: list[Setting]) -> None:
    verdict = blame(ladder([dict(each) for each in sets]))
    assert verdict.blamed is Blamed.AXIS
    assert all(broken.decided for broken in verdict.broken)
    assert {frozenset(broken.setting) for broken in verdict.broken} == {frozenset(each) for each in _visible(sets)}


def _visible(sets: list[Setting]) -> list[Setting]:
    """Those that some rung has without another: where tp2 and tp4 fail alone, nothing can be said about sp."""
    return [
        each
        for each in sets
        if any([one for one in sets if one.items() <= rung.items()] == [each] for rung in EVERYTHING)
    ]


def with_moe(failing: Iterable[Mapping[str, Any]], settings: Iterable[Mapping[str, Any]]) -> list[Outcome]:
    """The rungs of a second recipe, its single among them."""
    out = ladder(failing, [Setting(), *map(Setting, settings)])
    return [
        replace(
            each,
            rung=replace(each.rung, recipe="moe", id=f"{each.rung.id}@moe"),
            findings=tuple(replace(finding, rung=f"{finding.rung}@moe") for finding in each.findings),
        )
        for each in out
    ]


def test_neighbours_are_those_of_the_same_recipe() -> None:
    gpt = ladder([], [Setting(), Setting({"tp": 2})])
    moe = [{"ep": 2}, {"tp": 2}, {"ep": 2, "tp": 2}]
    assert blame([*gpt, *with_moe([{"ep": 2}], moe)]).sentence == "FAIL broken: ep (alone)"
    together = blame([*gpt, *with_moe([{"ep": 2, "tp": 2}], moe)])
    assert together.sentence == "FAIL broken: ep x tp (only together)"
    # tp2 of gpt passes, but it says nothing about a neighbour that was not run with moe.
    lost = blame([*gpt, *with_moe([{"ep": 2, "tp": 2}], moe[::2])])
    assert lost.sentence == "FAIL broken: tp (not decided: tp2@moe was not run: it would decide)"


def test_what_fails_with_one_recipe_only_is_said() -> None:
    gpt = ladder([], [Setting(), Setting({"tp": 2})])
    verdict = blame([*gpt, *with_moe([{"tp": 2}], [{"tp": 2}])])
    assert verdict.sentence == "FAIL broken: tp (alone; tp2@moe fails, tp2 passes)"
    both = blame([*ladder([{"tp": 2}], [Setting(), Setting({"tp": 2})]), *with_moe([{"tp": 2}], [{"tp": 2}])])
    assert both.sentence == "FAIL broken: tp (alone)"
    assert both.broken[0].rungs == ("tp2", "tp2@moe")


def test_a_recipe_that_is_wrong_says_nothing_about_the_other() -> None:
    gpt = ladder([{"tp": 2}], [Setting(), Setting({"tp": 2})])
    verdict = blame([*gpt, *with_moe([{}], [{"ep": 2}])])
    assert verdict.sentence == (
        "FAIL broken: the recipe on one device (gradients of single@moe), so nothing above it counts; tp (alone)"
    )


def test_devices_that_count_errors_accuse_their_host_and_no_axis() -> None:
    counted = {"check": "devices", "blames": Blamed.HOST, "message": "n2 XID 79", "step": None, "hosts": ("n2",)}
    outcomes = [
        outcome(rung()),
        outcome(rung({"tp": 2}), Status.FAIL, ("n1", "n2"), **counted),
        outcome(rung({"dp_shard": 2}), Status.FAIL, ("n1", "n2")),
    ]
    verdict = blame(outcomes)
    assert verdict.sentence == "FAIL broken: host n2 (n2 XID 79, in tp2); dp_shard (alone)"
    assert verdict.blamed is Blamed.HOST
