"""Which rungs would decide, and what their answers change."""

from __future__ import annotations

from dataclasses import replace

from test_judging_blame import finding, ladder, outcome
from tiny_world import rung

from dist_checks.axes import Setting
from dist_checks.judging.blame import blame
from dist_checks.judging.deciding import deciding
from dist_checks.judging.outcome import Outcome
from dist_checks.judging.verdict import Blamed, Status
from dist_checks.rung import Role, Rung

TOGETHER = {"dp_replicate": 3, "accum": 5}


def asked(outcomes: list[Outcome]) -> list[str]:
    return [rung.id for rung in deciding(outcomes)]


def again(repeated: Rung, **fields: object) -> Rung:
    return replace(repeated, id=f"{repeated.id}@again", role=Role.TWIN, twin_of=repeated.id, **fields)  # type: ignore[arg-type]


def test_a_healthy_ladder_asks_for_nothing() -> None:
    assert asked(ladder([])) == []


def test_the_smallest_failing_rung_of_each_set_is_run_again() -> None:
    assert asked(ladder([{"tp": 2}, TOGETHER])) == ["tp2@again", "dp_replicate3+accum5@again"]


def test_what_was_run_again_is_not_asked_for_twice() -> None:
    outcomes = ladder([{"tp": 2}])
    rerun = again(rung({"tp": 2}))
    same = (finding(rerun), finding(rerun, Status.PASS, check="twins"))
    assert asked([*outcomes, Outcome(rung=rerun, findings=same)]) == []
    assert (
        blame([*outcomes, Outcome(rung=rerun, findings=same)]).sentence == "FAIL broken: tp (alone; 2 fails, 4 passes)"
    )


def test_what_hung_is_not_run_again() -> None:
    outcomes = [replace(o, hung=True) if o.status is Status.FAIL else o for o in ladder([{"tp": 2}])]
    assert asked(outcomes) == []


def test_a_neighbour_that_was_not_run_is_asked_for() -> None:
    wanted = [Setting(), Setting({"dp_replicate": 3}), Setting(TOGETHER)]
    outcomes = ladder([TOGETHER], wanted)
    assert asked(outcomes) == ["dp_replicate3+accum5@again", "accum5"]
    (near,) = [r for r in deciding(outcomes) if r.role is Role.RUNG]
    assert (near.reference, near.truth, near.planned, near.precision) == ("single", "single", False, "fp64")
    decided = blame([*outcomes, outcome(near)])
    assert decided.sentence == "FAIL broken: dp_replicate x accum (only together)"


def test_its_single_comes_before_it() -> None:
    wanted = [Setting({"precision": "fp64"}), Setting({"tp": 2})]
    truth, first = rung(dict(wanted[0]), truth=None), rung({"tp": 2, "precision": "bf16"}, reference="bf16")
    single = rung({"precision": "bf16"}, truth=truth.id)
    first = replace(first, truth=truth.id)
    outcomes = [outcome(truth), outcome(single), outcome(first, Status.FAIL)]
    assert asked(outcomes) == ["tp2+bf16@again", "single", "tp2"]
    assert {r.precision for r in deciding(outcomes) if r.role is not Role.TWIN} == {"fp32"}


def test_a_race_explains_what_has_its_axes_on() -> None:
    outcomes = ladder([{"dp_replicate": 3}])
    rerun = again(rung({"dp_replicate": 3}))
    differs = finding(rerun, check="twins", step=2, tensor="wq", blames=Blamed.RACE)
    outcomes.append(Outcome(rung=rerun, findings=(finding(rerun), differs)))
    verdict = blame(outcomes)
    assert verdict.blamed is Blamed.RACE
    assert verdict.broken == ()
    assert verdict.sentence == "FAIL broken: a race (dp_replicate3 differs from its own rerun at step 2 in wq)"
    assert asked(outcomes) == []


def test_a_crash_that_does_not_come_again_is_no_fault_of_an_axis() -> None:
    outcomes = ladder([{"dp_replicate": 3}])
    died = finding(rung({"dp_replicate": 3}), check="completes", message="rank 1, signal 11 failed in step 1")
    outcomes = [replace(o, findings=(died,)) if o.rung.id == "dp_replicate3" else o for o in outcomes]
    rerun = again(rung({"dp_replicate": 3}))
    verdict = blame([*outcomes, Outcome(rung=rerun, findings=(finding(rerun, Status.PASS, check="twins"),))])
    assert verdict.blamed is Blamed.RACE
    assert "dp_replicate3 failed, and ends well when it is run again: rank 1, signal 11" in verdict.sentence


def test_a_cold_twin_that_differs_asks_whether_a_warm_one_does() -> None:
    outcomes = ladder([])
    cold = replace(rung({"tp": 2}), id="tp2@cold", role=Role.TWIN, twin_of="tp2", cold=True)
    differs = finding(cold, check="twins", step=1, observed=0.1, blames=Blamed.LAUNCHER)
    outcomes.append(Outcome(rung=cold, findings=(differs,)))
    assert asked(outcomes) == ["tp2@again"]


def test_nothing_is_asked_above_a_broken_single() -> None:
    assert asked(ladder([{}])) == []
