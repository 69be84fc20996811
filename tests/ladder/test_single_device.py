"""Rung zero: each planted fault of one device is caught by its check, with the right suspect first, and only then."""

from __future__ import annotations

from typing import Any

import pytest
from ladders import Ladder, findings
from planting import matrix

from dist_checks.judging.triage import SYMPTOMS
from dist_checks.judging.verdict import ExitCode
from dist_checks.session import Outcome
from dist_checks.worker.faults import find

SMALL = {"layers": 2, "samples": 123}
LOOK = {"learn": 2, "overfit": 0}
NONE = {"learn": 0, "overfit": 0}
LEARN = {"learn": 60, "overfit": 0}
OVERFIT = {"learn": 0, "overfit": 8, "overfit_steps": 80}

# fault, what is run of rung zero, the rung that shows it
CASES = [
    ("logits_times_ten", NONE, "single"),
    ("unshifted_labels", LOOK, "learn"),
    ("labels_shifted_twice", LOOK, "learn"),
    ("labels_of_another_sample", LOOK, "learn"),
    ("attention_does_nothing", LOOK, "learn"),
    ("optimizer_holds_copies", NONE, "single"),
    ("optimizer_misses_biases", NONE, "single"),
    ("rate_times_three_hundred", OVERFIT, "single"),
    ("loss_summed", LEARN, "learn"),
    ("padding_as_label", LOOK, "learn"),
    ("samples_doubled", LOOK, "learn"),
    ("validation_is_training", LOOK, "learn"),
    ("validation_augmented", LOOK, "learn"),
    ("validation_cut", LOOK, "learn"),
    ("targets_emptied", LOOK, "learn"),
    ("weight_decay_on_norms", NONE, "single"),
    ("branch_detached", NONE, "single"),
    ("relu_dead", LOOK, "learn"),
    ("tanh_saturated", LOOK, "learn"),
    ("gradient_shrinks", NONE, "single"),
    ("gradient_grows", NONE, "single"),
    ("loss_scale_kept", LEARN, "learn"),
    ("loss_negated", LEARN, "learn"),
    ("logits_know_frequencies", NONE, "single"),
    ("nan_from_one_letter", NONE, "single"),
]


def caught(outcome: Outcome, fault: str, rung: str) -> None:
    """By its check, which the verdict names first, with all symptoms that it leads to and the right suspect of each."""
    report = outcome.report
    [planted] = find(fault)
    assert outcome.exit_code() is ExitCode.FAIL
    assert report["blamed"] == "recipe", report["sentence"]
    assert f"({planted.check} of {rung})" in report["sentence"], "what is caught is what the verdict says first"
    [first, *_] = findings(report, planted.check, rung)
    assert first["symptom"] in planted.leads_to
    for symptom, suspect in planted.leads_to.items():
        row = SYMPTOMS[symptom]
        [found, *_] = [f for f in report["findings"] if f["status"] == "fail" and f.get("symptom") == symptom]
        assert (found["suspects"][0], found["next"]) == (row.suspects[suspect], row.change)


@pytest.mark.parametrize(("fault", "single", "rung"), CASES, ids=[case[0] for case in CASES])
def test_caught_with_its_suspect_first(ladder: Ladder, fault: str, single: dict[str, Any], rung: str) -> None:
    caught(ladder({}, fault=fault, single=single, options=SMALL), fault, rung)


@pytest.mark.parametrize(
    ("fault", "steps"),
    [
        ("labels_from_one", 2),
        ("inputs_not_normalised", 2),
        ("label_among_inputs", 2),
        ("class_mapped_to_another", 80),
        ("measures_a_copy", 80),
    ],
)
def test_of_a_classifier(ladder: Ladder, fault: str, steps: int) -> None:
    caught(ladder({}, fault=fault, recipe="mlp", single={"learn": steps, "overfit": 0}), fault, "learn")


@pytest.mark.parametrize(
    ("fault", "rung"),
    [
        ("prompt_trained_on", "learn"),
        ("begun_twice", "learn"),
        ("sources_in_turns", "learn"),
        ("never_loaded", "single"),
    ],
)
def test_of_prompts_and_answers(ladder: Ladder, fault: str, rung: str) -> None:
    [planted] = find(fault)
    caught(ladder({}, fault=fault, **matrix(planted)), fault, rung)


def test_prompts_and_answers_pass(ladder: Ladder) -> None:
    single = {"learn": 80, "overfit": 8, "overfit_steps": 160}
    outcome = ladder({}, recipe="answers", single=single, options=SMALL)
    assert outcome.report["sentence"] == "PASS one device is healthy (overfit, learn)"
    told = {f["check"]: f for f in outcome.report["findings"] if f["rung"] == "learn"}
    assert all(told[f"data_{name}"]["status"] == "pass" for name in ("padding", "special_tokens", "mixture"))
    outcome = ladder({}, recipe="answers", single=LOOK, options={**SMALL, "trained": True})
    assert outcome.report["sentence"] == "PASS one device is healthy (learn)"


@pytest.mark.parametrize("fault", ["causal_mask_missing", "same_few_samples", "labels_shuffled", "rate_divided"])
def test_what_takes_a_ladder_of_its_own_to_show(ladder: Ladder, fault: str) -> None:
    [planted] = find(fault)
    outcome = ladder({}, **matrix(planted))
    assert outcome.report["sentence"] == "PASS one device is healthy (learn)"
    caught(ladder({}, fault=fault, **matrix(planted)), fault, "learn")


def test_a_healthy_classifier_shows_what_it_confuses(ladder: Ladder) -> None:
    outcome = ladder({}, recipe="mlp", single={"learn": 80, "overfit": 8})
    assert outcome.report["sentence"] == "PASS one device is healthy (overfit, learn)"
    [learn] = [rung for rung in outcome.report["rungs"] if rung["id"] == "learn"]
    health = learn["health"]
    assert sum(health["classes"]["counts"]) == 60, "what is held out"
    (_, before), (_, after) = health["metrics"]
    assert after["accuracy"] > 0.7 > before["accuracy"]
    page = (outcome.folder / "report.html").read_text(encoding="utf-8")
    assert "classes after learning" in page
    assert "most frequent mistakes" in page


def test_a_loss_that_is_stuck_has_its_cause_named_first(ladder: Ladder) -> None:
    outcome = ladder({}, fault="rate_is_zero", single=LEARN, options=SMALL)
    assert "(update_ratio of learn)" in outcome.report["sentence"], "weights that do not move are the cause"
    rates = [findings(outcome.report, check, "learn")[0] for check in ("update_ratio", "loss_falls")]
    assert [found["symptom"] for found in rates] == ["updates_small", "loss_stuck"]
    assert all(f["suspects"][0] == SYMPTOMS[f["symptom"]].suspects["rate"] for f in rates)


def test_packed_documents_see_only_themselves(ladder: Ladder) -> None:
    packed = {"recipe": "packed", "options": {"samples": 62}, "single": LOOK}
    assert ladder({}, **packed).exit_code() is ExitCode.PASS
    fault = "documents_attend_to_each_other"
    caught(ladder({}, fault=fault, **packed), fault, "learn")


def test_packed_documents_are_the_same_wherever_they_stand(ladder: Ladder) -> None:
    packed = {"recipe": "packed", "single": LOOK}
    learned = {"samples": 62, "learned": True}
    assert ladder({}, **packed, options=learned).exit_code() is ExitCode.PASS
    caught(ladder({}, fault="positions_go_on", **packed, options=learned), "positions_go_on", "learn")
    rotary = ladder({}, fault="positions_go_on", **packed, options={"samples": 62})
    assert rotary.exit_code() is ExitCode.PASS, "relative positions may go on"
    [found] = [f for f in rotary.report["findings"] if (f["check"], f["rung"]) == ("documents", "learn")]
    assert "; where it stands changes its own by " in found["message"]


def test_a_mean_of_means_in_the_loss_is_not_additive(ladder: Ladder) -> None:
    outcome = ladder({}, fault="means_of_samples", single=NONE, options=SMALL)
    assert outcome.report["blamed"] == "recipe"
    assert "(additive of single)" in outcome.report["sentence"]


@pytest.mark.parametrize(
    ("fault", "precision", "check", "symptom"),
    [
        ("overflow_in_one_layer", "fp16", "non_finite", "not_finite"),
        ("norm_by_hand_in_16_bits", "bf16", "fp32_islands", "narrow_islands"),
    ],
)
def test_what_is_wrong_in_16_bits_alone(ladder: Ladder, fault: str, precision: str, check: str, symptom: str) -> None:
    assert ladder({"precision": precision}, options=SMALL).exit_code() is ExitCode.PASS
    outcome = ladder({"precision": precision}, fault=fault, options=SMALL)
    assert findings(outcome.report, check, precision)[0]["symptom"] == symptom
    [broken] = outcome.report["broken"]
    assert (broken["axes"], broken["check"]) == (["precision"], check)


def test_weights_that_were_loaded_and_weights_that_were_not(ladder: Ladder) -> None:
    fine_tuned = {"recipe": "loaded_recipe:Loaded", "single": LOOK}
    outcome = ladder({}, **fine_tuned)
    assert outcome.report["sentence"] == "PASS one device is healthy (learn)"
    [found] = [f for f in outcome.report["findings"] if (f["check"], f["rung"]) == ("step_zero", "single")]
    assert found["message"].endswith("it starts from trained weights, as the recipe says")
    outcome = ladder({}, options={"lost": True}, **fine_tuned)
    [found] = findings(outcome.report, "step_zero", "single")
    assert found["symptom"] == "not_loaded"


def test_a_set_of_a_hundred_is_memorised_as_well(ladder: Ladder) -> None:
    outcome = ladder({}, recipe="mlp", single={"learn": 0, "overfit": 100, "overfit_steps": 300})
    assert outcome.report["sentence"] == "PASS one device is healthy (overfit)"
    [found] = [f for f in outcome.report["findings"] if (f["check"], f["rung"]) == ("overfit", "overfit")]
    assert found["message"].startswith("100 samples: the loss went from ")


def test_the_mixture_of_experts_passes(ladder: Ladder) -> None:
    single = {"learn": 60, "overfit": 8, "overfit_steps": 160}
    outcome = ladder({}, recipe="moe", single=single, options={"samples": 123})
    assert outcome.report["sentence"] == "PASS one device is healthy (overfit, learn)"


def test_without_a_fault_all_of_it_passes(ladder: Ladder) -> None:
    single = {"learn": 60, "overfit": 8, "overfit_steps": 160}
    outcome = ladder({}, single=single, options=SMALL)
    assert outcome.report["sentence"] == "PASS one device is healthy (overfit, learn)"
    assert outcome.exit_code() is ExitCode.PASS
