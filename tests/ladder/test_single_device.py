"""Rung zero: each planted fault of one device is caught by its check, with the right suspect first, and only then."""

from __future__ import annotations

from typing import Any

import pytest
from ladders import Ladder, findings

from dist_checks.judging.triage import SYMPTOMS
from dist_checks.judging.verdict import ExitCode

SMALL = {"layers": 2, "samples": 123}
LOOK = {"learn": 2, "overfit": 0}
NONE = {"learn": 0, "overfit": 0}
LEARN = {"learn": 60, "overfit": 0}
OVERFIT = {"learn": 0, "overfit": 8, "overfit_steps": 80}

# fault, what is run of rung zero, the check, its rung, the symptom, the first suspect
CASES = [
    ("logits_times_ten", NONE, "step_zero", "single", "first_loss_high", "scale"),
    ("unshifted_labels", LOOK, "alignment", "learn", "alignment", "unshifted"),
    ("labels_shifted_twice", LOOK, "alignment", "learn", "alignment", "twice"),
    ("labels_of_another_sample", LOOK, "alignment", "learn", "alignment", "none"),
    ("causal_mask_missing", LOOK, "causal", "learn", "future_seen", "mask"),
    ("attention_does_nothing", LOOK, "causal", "learn", "inputs_ignored", "attention"),
    ("optimizer_holds_copies", NONE, "optimizer_covers", "single", "optimizer_wrong", "stale"),
    ("optimizer_misses_biases", NONE, "optimizer_covers", "single", "optimizer_wrong", "missing"),
    ("rate_times_three_hundred", OVERFIT, "overfit", "overfit", "not_memorised", "rate"),
    ("loss_summed", LEARN, "clipping", "learn", "clipped_always", "limit"),
    ("padding_as_label", LOOK, "data_padding", "learn", "padding_counts", "pad"),
    ("samples_doubled", LOOK, "data_duplicates", "learn", "duplicates", "copied"),
    ("validation_is_training", LOOK, "data_validation", "learn", "overlap", "split"),
    ("validation_augmented", LOOK, "data_validation", "learn", "random_validation", "augmentation"),
    ("targets_emptied", LOOK, "data_duplicates", "learn", "empty_samples", "filter"),
    ("weight_decay_on_norms", NONE, "weight_decay_groups", "single", "decayed_norms", "groups"),
    ("branch_detached", NONE, "grads_reach", "single", "gradient_missing", "detached"),
    ("relu_dead", LOOK, "activations", "learn", "dead", "bias"),
    ("gradient_shrinks", NONE, "gradient_flow", "single", "gradient_vanishes", "residual"),
    ("logits_know_frequencies", NONE, "step_zero", "single", "first_loss_low", "leak"),
    ("nan_from_one_letter", NONE, "non_finite", "single", "not_finite", "zero"),
]


@pytest.mark.parametrize(("fault", "single", "check", "rung", "symptom", "suspect"), CASES, ids=[c[0] for c in CASES])
def test_caught_with_its_suspect_first(
    ladder: Ladder, fault: str, single: dict[str, Any], check: str, rung: str, symptom: str, suspect: str
) -> None:
    outcome = ladder({}, fault=fault, single=single, options=SMALL)
    report = outcome.report
    assert outcome.exit_code() is ExitCode.FAIL
    assert report["blamed"] == "recipe", report["sentence"]
    [found, *_] = findings(report, check, rung)
    row = SYMPTOMS[symptom]
    assert (found["symptom"], found["suspects"][0], found["next"]) == (symptom, row.suspects[suspect], row.change)
    assert f"({check} of {rung})" in report["sentence"], "what is caught is what the verdict says first"


@pytest.mark.parametrize(
    ("fault", "steps", "check", "symptom", "suspect"),
    [
        ("labels_from_one", 2, "data_labels", "labels_wrong", "off_by_one"),
        ("inputs_not_normalised", 2, "data_inputs", "inputs_wide", "scale"),
        ("class_mapped_to_another", 80, "classes", "class_never_right", "mapped"),
        ("measures_a_copy", 80, "useful", "useless", "other"),
    ],
)
def test_of_a_classifier(ladder: Ladder, fault: str, steps: int, check: str, symptom: str, suspect: str) -> None:
    outcome = ladder({}, fault=fault, recipe="mlp", single={"learn": steps, "overfit": 0})
    assert outcome.report["blamed"] == "recipe"
    assert f"({check} of learn)" in outcome.report["sentence"]
    [found] = findings(outcome.report, check, "learn")
    assert (found["symptom"], found["suspects"][0]) == (symptom, SYMPTOMS[symptom].suspects[suspect])


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
    outcome = ladder({}, fault="documents_attend_to_each_other", **packed)
    [found] = findings(outcome.report, "documents", "learn")
    assert found["suspects"][0] == SYMPTOMS["documents_mixed"].suspects["mask"]


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
