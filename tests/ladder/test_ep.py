"""ep: experts spread over ranks compute what one device computes, alone and with other axes; its faults are found."""

from __future__ import annotations

from typing import Any

import pytest
from ladders import Ladder, broken, findings

from dist_checks.judging.verdict import ExitCode

MOE: dict[str, Any] = {"recipe": "moe", "options": {"width": 16, "samples": 62}}


def distances(report: dict[str, Any]) -> dict[str, float]:
    """Of each float64 rung, the largest distance of any gradient of any step to one device."""
    rungs = [rung for rung in report["rungs"] if rung["role"] == "rung" and rung["precision"] == "fp64"]
    return {rung["id"]: max(rung["series"]["gradient_distance"]) for rung in rungs}


def test_ep_alone_and_with_others(ladder: Ladder) -> None:
    axes = {"ep": [2, 4], "dp_replicate": 3, "dp_shard": [3, 2], "accum": 2}
    exclude = ["dp_replicate3+dp_shard2", "dp_replicate3+accum2", "dp_shard2+accum2", "dp_shard3+accum2", "ep4+accum2"]
    outcome = ladder(axes, **MOE, steps=2, combine={"exclude": exclude})
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    found = distances(outcome.report)
    assert {"ep2", "ep4", "dp_replicate3+ep2", "dp_shard3+ep2", "dp_shard2+ep4", "ep2+accum2"} <= set(found)
    assert max(found.values()) < 1e-11


def test_ep_with_tp_and_sp(ladder: Ladder) -> None:
    axes = {"ep": 2, "tp": 2, "sp": True, "dp_replicate": 2}
    exclude = ["dp_replicate2+tp2+sp"]
    outcome = ladder(axes, **MOE, steps=2, combine={"mode": "all", "exclude": exclude})
    assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    found = distances(outcome.report)
    assert {"ep2+tp2", "ep2+tp2+sp", "dp_replicate2+ep2+tp2"} <= set(found)
    assert max(found.values()) < 1e-11
    # Nothing in the recipe itself is narrower than float64: the limits are as fine as they can be.
    fine = [rung["sensitivity"]["coarsest"]["scale"] for rung in outcome.report["rungs"] if rung["sensitivity"]]
    assert max(fine) < 1e-7


def test_o27_expert_gradients_too_large_by_ep(ladder: Ladder) -> None:
    outcome = ladder({"ep": [2, 4], "dp_replicate": 3}, fault="O27", **MOE)
    assert outcome.exit_code() is ExitCode.FAIL
    assert outcome.report["sentence"] == "FAIL broken: ep (alone)"
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["step"], entry["tensor"]) == ("gradients", 0, "blocks.1.moe.experts.up")
    assert entry["explanation"] == "every gradient of the experts is 2 x the reference: not divided by ep (2)"
    assert entry["residual"][1] < 1e-12
    [four] = findings(outcome.report, "gradients", "ep4")
    assert four["scale"] == pytest.approx(4)
    wrong = {finding["tensor"] for finding in findings(outcome.report, "gradients", "ep2")}
    assert all(".experts." in name for name in wrong)


def test_ep_that_is_silently_not_applied(ladder: Ladder) -> None:
    outcome = ladder({"ep": 2, "dp_replicate": 3}, fault="ep_ignored", **MOE)
    assert broken(outcome.report) == [["ep"]]
    [finding] = findings(outcome.report, "engaged", "ep2")
    assert finding["message"].startswith("ep is not on: none of ")
    assert max(distances(outcome.report).values()) < 1e-11, "the numbers are right, which is why nothing else sees it"


def test_two_recipes_in_one_ladder(ladder: Ladder) -> None:
    """gpt has no experts, so ep is on the ladder with a recipe that has; each is compared with a single of its own."""
    also = {**MOE, "axes": {"ep": 2, "tp": 2}, "combine": {"include": ["ep2+tp2"], "mode": "singles"}}
    outcome = ladder({"tp": 2}, options={"layers": 2, "width": 16}, also=[also], fault="O27", steps=2)
    assert outcome.report["sentence"] == "FAIL broken: ep (alone)"
    rungs = {rung["id"]: rung for rung in outcome.report["rungs"]}
    failing = {id for id, rung in rungs.items() if rung["status"] == "fail" and rung["role"] == "rung"}
    assert failing == {"ep2@moe", "ep2+tp2@moe"}
    assert (rungs["ep2@moe"]["reference"], rungs["ep2@moe"]["recipe"]) == ("single@moe", "moe")
    assert "recipe" not in rungs["tp2"]
    assert outcome.report["matrix"]["recipe"] == "gpt, moe"
    [entry] = outcome.report["broken"]
    assert entry["explanation"] == "every gradient of the experts is 2 x the reference: not divided by ep (2)"
    for rung in rungs.values():
        if rung["role"] == "rung" and rung["id"] not in failing:
            assert max(rung["series"]["gradient_distance"]) < 1e-11


def test_what_a_recipe_cannot_do_is_left_out_with_the_reason(ladder: Ladder) -> None:
    outcome = ladder({}, also=[{"recipe": "gpt", "axes": {"ep": 2, "accum": 2}}], steps=1, options={"layers": 1})
    reason = "ep needs a recipe with experts; gpt has none"
    assert {"axes": {"ep": 2}, "reason": reason, "recipe": "gpt"} in outcome.report["skipped"]
    assert {rung["id"] for rung in outcome.report["rungs"] if rung["role"] == "rung"} == {"accum2@gpt"}


def test_o28_balance_term_that_depends_on_tp(ladder: Ladder) -> None:
    outcome = ladder({"tp": 2, "ep": 2}, fault="O28", **MOE, steps=1, combine={"mode": "singles"})
    assert outcome.report["sentence"] == "FAIL broken: tp (alone)"
    [entry] = outcome.report["broken"]
    assert entry["step"] == 0
    assert entry["explanation"] == (
        "the balance term entered with weight 0.5: divided by tp (2) once too often; "
        "it weighs most in blocks.1.moe.router.weight"
    )
    assert entry["residual"][1] < 1e-12
    off = {**MOE, "options": {**MOE["options"], "balance": 0.0}}
    without = ladder({"tp": 2}, fault="O28", **off, steps=1)
    assert without.exit_code() is ExitCode.PASS, without.report["sentence"]


def test_tokens_that_go_to_other_experts(ladder: Ladder) -> None:
    outcome = ladder({"tp": 2, "ep": 2}, fault="token_misrouted", **MOE, steps=1, combine={"mode": "singles"})
    assert outcome.report["sentence"] == "FAIL broken: ep (alone)"
    [entry] = outcome.report["broken"]
    assert (entry["check"], entry["step"], entry["tensor"], entry["ranks"]) == (
        "routing",
        0,
        "blocks.1.moe.router",
        [1],
    )
    assert "tokens were routed to other experts than in single at step 0, 0 allowed" in entry["explanation"]


@pytest.mark.parametrize("fault", [None, "gradient_scaled"])
def test_rounding_may_send_a_token_elsewhere_and_hides_no_factor(ladder: Ladder, fault: str | None) -> None:
    """Experts that are all but equally probable: which one is chosen is a matter of rounding."""
    moe = {"recipe": "moe", "steps": 2, "seeds": [0]}
    outcome = ladder({"ep": 2, "precision": "bf16"}, fault=fault, **moe)
    [routing] = [f for f in outcome.report["findings"] if (f["check"], f["rung"]) == ("routing", "ep2+bf16")]
    assert routing["status"] == "pass"
    assert routing["message"].endswith("which rounding explains")
    if fault is None:
        assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]
    else:
        assert broken(outcome.report) == [["ep"]]
        assert findings(outcome.report, "gradients", "ep2+bf16")
