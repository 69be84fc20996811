"""Checks of one device alone, on what a rank could have written down: each sees its fault and is quiet without it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_world import rung

from dist_checks.judging.checks.alone import ALONE
from dist_checks.judging.modules import first_difference
from dist_checks.judging.reading import RECORD, Digests, RankTrace, Trace
from dist_checks.judging.replayed import sentences
from dist_checks.judging.seen import Seen
from dist_checks.judging.triage import SYMPTOMS, find
from dist_checks.judging.verdict import Blamed, Finding, Status
from dist_checks.judging.view import RungView
from dist_checks.rung import Role

CHECKS = dict(ALONE)
CLASSES = {"classes": 10}
TEXT = {"classes": 256, "next_token": True}
RAW = {"mean": 120.0, "std": 70.0, "constant": 0.0}
STILL = {"mean": 0.0, "std": 1.0, "constant": 1.0}
TRAIN = {
    "what": "split",
    "split": "train",
    "ids": list(range(100)),
    "inputs": list(range(100)),
    "targets": list(range(100)),
    "lengths": [20] * 100,
    "counts": [20] * 100,
    "labels": {str(label): 200 for label in range(10)},
    "smallest": 0,
    "largest": 9,
    "classes_seen": 10,
    "unigram": 2.3,
    "bigram": 2.0,
}
HELD = {
    **TRAIN,
    "split": "validation",
    "ids": list(range(100, 120)),
    "inputs": list(range(100, 120)),
    "targets": list(range(100, 120)),
    "lengths": [20] * 20,
}


def asked(
    name: str,
    *observed: dict[str, Any],
    recipe: dict[str, Any] | None = None,
    losses: list[float] | None = None,
    norms: list[float] | None = None,
    role: Role = Role.LEARN,
    header: dict[str, Any] | None = None,
    **fields: Any,
) -> Finding:
    values = losses or [math.log(10)]
    steps = {
        at: {"loss_sum": 100 * loss, "targets": 100, "epoch": 0, "ids": [at], "norm_used": (norms or [1.0])[-1]}
        for at, loss in enumerate(values)
    }
    for at, norm in enumerate(norms or ()):
        steps[at] |= {"norm_used": norm, "clip": 1.0}
    rank = RankTrace(
        rank=0,
        header=header or {"world_size": 1},
        entries={},
        steps=steps,
        evidence={},
        digests=Digests.of(Path("none"), np.zeros(0, RECORD)),
        ended=True,
        problems=(),
        observed=tuple(observed),
    )
    own = Seen(rung(role=role, id=role.value, steps=len(values)), Trace(Path("none"), 1, (rank,)))
    view = RungView(own=own, exit=None, recipe=recipe or CLASSES, **fields)
    [found] = CHECKS[name](view)
    return found


def sees(symptom: str, suspect: str, name: str, *observed: dict[str, Any], **fields: Any) -> None:
    found = asked(name, *observed, **fields)
    assert (found.status, found.symptom) == (Status.FAIL, symptom), found
    assert found.suspects[0] == SYMPTOMS[symptom].suspects[suspect]
    assert found.blames is Blamed.RECIPE


@pytest.mark.parametrize(
    ("name", "held", "wrong", "recipe", "symptom", "suspect"),
    [
        ("data_labels", {}, {"smallest": 1, "largest": 10}, CLASSES, "labels_wrong", "off_by_one"),
        ("data_labels", {}, {"smallest": 1, "classes_seen": 9}, CLASSES, "labels_wrong", "off_by_one"),
        ("data_labels", {}, {"largest": 12}, CLASSES, "labels_wrong", "range"),
        ("data_labels", {}, {"labels": {"3": 1990, "4": 10}}, CLASSES, "labels_wrong", "imbalance"),
        ("data_padding", {}, {"pad_targets": 3}, TEXT, "padding_counts", "pad"),
        ("data_padding", {}, {"prompt_targets": 3}, TEXT, "prompt_counts", "ignore"),
        ("data_special_tokens", {}, {"ends": {"0": 90, "1": 10}}, TEXT, "special_tokens", "missing"),
        ("data_special_tokens", {}, {"begins": {"2": 100}}, TEXT, "special_tokens", "twice"),
        ("data_duplicates", {}, {"inputs": [1] * 100, "targets": [1] * 100}, TEXT, "duplicates", "copied"),
        ("data_duplicates", {}, {"counts": [1] * 30 + [20] * 70}, TEXT, "empty_samples", "filter"),
        (
            "data_inputs",
            {},
            {"features": {"mean": 120.0, "std": 70.0, "constant": 0.0}},
            CLASSES,
            "inputs_wide",
            "scale",
        ),
        (
            "data_inputs",
            {},
            {"features": {"mean": 0.0, "std": 1.0, "constant": 1.0}},
            CLASSES,
            "inputs_wide",
            "constant",
        ),
        ("data_inputs", {}, {"leaks": [4]}, CLASSES, "label_leak", "column"),
        ("data_validation", {"inputs": [*range(20)], "targets": [*range(20)]}, {}, TEXT, "overlap", "split"),
        ("data_validation", {"again": [101]}, {}, TEXT, "random_validation", "augmentation"),
        ("data_validation", {"labels": {"77": 2000}}, {}, TEXT, "drifted", "source"),
        ("data_validation", {"lengths": [200] * 20}, {}, TEXT, "drifted", "source"),
        (
            "data_mixture",
            {},
            {"sources": {"web": 90, "code": 10}},
            {**TEXT, "mixture": {"web": 0.5, "code": 0.5}},
            "mixture",
            "weights",
        ),
    ],
)
def test_data(
    name: str, held: dict[str, Any], wrong: dict[str, Any], recipe: dict[str, Any], symptom: str, suspect: str
) -> None:
    sees(symptom, suspect, name, {**TRAIN, **wrong}, {**HELD, **held}, recipe=recipe)
    features = {"mean": 0.0, "std": 1.0, "constant": 0.1}
    right = {**TRAIN, "features": features, "begins": {"1": 100}, "sources": {"web": 52, "code": 48}}
    assert asked(name, right, HELD, recipe=recipe).status is Status.PASS


def test_validation_samples_that_differ_in_their_targets_or_are_as_common_as_copies_are() -> None:
    texts = {**HELD, "inputs": list(range(20))}
    assert asked("data_validation", TRAIN, texts, recipe=TEXT).status is Status.PASS
    one = {**HELD, "inputs": [5, *range(101, 120)], "targets": [5, *range(101, 120)]}
    assert asked("data_validation", TRAIN, one, recipe=TEXT).status is Status.FAIL
    copies = {**TRAIN, "inputs": [0, *range(99)], "targets": [0, *range(99)]}
    assert asked("data_validation", copies, one, recipe=TEXT).status is Status.PASS


def test_what_a_recipe_does_not_offer_is_skipped() -> None:
    for name in ("data_special_tokens", "data_inputs", "data_mixture", "data_validation", "documents", "expected"):
        found = asked(name, TRAIN, {"what": "documents", "missing": True})
        assert found.status is Status.SKIP, name
        assert found.message


@pytest.mark.parametrize(
    ("loss", "recipe", "symptom"),
    [
        (math.log(10) + 0.1, CLASSES, None),
        (math.log(10) + 3, CLASSES, "first_loss_high"),
        (0.5, CLASSES, "first_loss_low"),
        (0.5, {**CLASSES, "starts_trained": True}, None),
        (math.log(10), {**CLASSES, "starts_trained": True}, "not_loaded"),
        (math.nan, CLASSES, "not_finite"),
    ],
)
def test_step_zero(loss: float, recipe: dict[str, Any], symptom: str | None) -> None:
    found = asked("step_zero", losses=[loss], recipe=recipe, role=Role.SINGLE)
    assert (found.status, found.symptom) == (Status.FAIL if symptom else Status.PASS, symptom or "")


def curve(start: float, end: float, steps: int = 100) -> list[float]:
    return [end + (start - end) * math.exp(-at / 15) for at in range(steps)]


@pytest.mark.parametrize(
    ("losses", "symptom"),
    [
        (curve(5.5, 2.0), None),
        ([math.log(256)] * 100, "loss_stuck"),
        ([math.log(256)] * 10 + [2.31] * 90, "loss_at_frequencies"),
        (curve(5.5, 5.1), "loss_slow"),  # it has stopped, and far from where frequencies would have led
        ([5.5 - 0.004 * at for at in range(100)], "loss_slow"),
        (curve(5.5, 9.0), "loss_rises"),
        ([5.5] * 60 + [math.nan] * 40, "loss_rises"),
    ],
)
def test_loss_falls(losses: list[float], symptom: str | None) -> None:
    found = asked("loss_falls", TRAIN, losses=losses, recipe=TEXT)
    assert (found.status, found.symptom) == (Status.FAIL if symptom else Status.PASS, symptom or ""), found.message


def test_a_loss_that_still_falls_is_not_decided() -> None:
    found = asked("loss_falls", TRAIN, losses=[5.5 - 0.02 * at for at in range(100)], recipe=TEXT)
    assert found.status is Status.INCONCLUSIVE
    assert "single.learn" in found.message


def test_too_good_is_of_what_was_not_read_before() -> None:
    held = {"what": "validation", "step": 100, "loss_sum": 40.0, "targets": 100}
    sees("too_good", "overlap", "too_good", TRAIN, held, losses=curve(5.5, 2.0), recipe=TEXT)
    unshifted = {"what": "alignment", "losses": {"0": 0.1, "1": 9.0}}
    sees("too_good", "unshifted", "too_good", TRAIN, held, unshifted, losses=curve(5.5, 2.0), recipe=TEXT)
    right = {**held, "loss_sum": 190.0}
    assert asked("too_good", TRAIN, right, losses=curve(5.5, 2.0), recipe=TEXT).status is Status.PASS


def test_classes_and_what_the_model_is_for() -> None:
    told = {"what": "classes", "names": ["a", "b", "c"], "counts": [9, 9, 9], "right": [9, 0, 8], "worst": []}
    told |= {"losses": [1.0, 20.0, 1.0], "confusion": [[1, 2, 9], [2, 0, 1]]}
    found = asked("classes", told, losses=curve(1.1, 0.2))
    assert "none of the 9 of b, 9 times taken for c" in found.message
    sees("class_never_right", "mapped", "classes", told, losses=curve(1.1, 0.2))
    assert asked("classes", {**told, "right": [9, 7, 8]}, losses=curve(1.1, 0.2)).status is Status.PASS
    assert asked("classes", {**told, "right": [3, 0, 3]}, losses=curve(1.1, 1.0)).status is Status.PASS, (
        "not learned yet"
    )
    before, after = ({"what": "metrics", "values": {"accuracy": value}} for value in (0.3, 0.9))
    assert asked("useful", before, after, losses=curve(1.1, 0.2)).status is Status.PASS
    sees("useless", "other", "useful", before, before, losses=curve(1.1, 0.2))
    assert asked("useful", before, before, losses=[1.1] * 100).status is Status.PASS, "loss_falls has said it"


def test_a_spike_names_its_samples() -> None:
    losses = curve(5.5, 2.0)
    losses[70] = 8.0
    found = asked("spikes", TRAIN, losses=losses, norms=[1.0] * 100, recipe=TEXT)
    assert (found.status, found.step, found.symptom) == (Status.FAIL, 70, "spike")
    assert "samples 70" in found.message
    assert asked("spikes", TRAIN, losses=curve(5.5, 2.0), norms=[1.0] * 100).status is Status.PASS


def test_packed_documents() -> None:
    right = {"what": "documents", "first": 1.0, "other": 0.0}
    assert asked("documents", right, recipe=TEXT).status is Status.PASS, "as traces had it before"
    assert asked("documents", {**right, "moved": None}, recipe=TEXT).status is Status.PASS
    assert asked("documents", {**right, "moved": 1e-4}, recipe=TEXT).status is Status.PASS, "rotary in float32"
    sees("documents_mixed", "positions", "documents", {**right, "moved": 0.5}, recipe=TEXT)
    sees("documents_mixed", "positions", "documents", {**right, "moved": math.nan}, recipe=TEXT)
    sees("documents_mixed", "mask", "documents", {**right, "other": 0.1, "moved": 0.5}, recipe=TEXT)


def test_norms() -> None:
    losses = curve(5.5, 2.0)
    sees("clipped_always", "limit", "clipping", losses=losses, norms=[50.0] * 100)
    sees("norm_grows", "rate", "clipping", losses=losses, norms=[0.01 * 1.1**at for at in range(100)])
    assert asked("clipping", losses=losses, norms=[2.0, 0.5] * 50).status is Status.PASS


def test_expected() -> None:
    expect = {"first_loss": 5.5, "loss": {"99": 2.0}, "within": 0.05}
    assert asked("expected", losses=curve(5.5, 2.0), expect=expect).status is Status.PASS
    found = asked("expected", losses=curve(5.5, 2.4), expect=expect)
    assert (found.status, found.step, found.symptom) == (Status.FAIL, 99, "expected_otherwise")
    missing = asked("expected", losses=curve(5.5, 2.0, steps=60), expect=expect)
    assert missing.status is Status.INCONCLUSIVE


def test_the_optimizer_by_its_table() -> None:
    rows = [{"name": name, "shape": [2, 2], "trainable": True, "tied": None} for name in ("a", "b")]

    def found(*names: str | None) -> Finding:
        header = {"parameters": rows, "optimizer": [{"parameters": list(names)}]}
        return asked("optimizer_covers", header=header)

    assert found("a", "b").status is Status.PASS
    assert found("a").tensor == "b"
    assert found(None, None).suspects[0] == SYMPTOMS["optimizer_wrong"].suspects["stale"]
    assert found("a", "b", "b").suspects[0] == SYMPTOMS["optimizer_wrong"].suspects["twice"]


def test_the_first_module_that_differs() -> None:
    rows = [{"name": name, "distance": 1e-7} for name in ("embedding", "blocks.0.norm1", "head")]
    gradients = [{"name": "head.weight", "distance": 1e-7}]
    same = {"modules": rows, "gradients": gradients, "unmatched": []}
    assert first_difference(same).status is Status.PASS
    other = {**same, "modules": [rows[0], {**rows[1], "distance": 0.02}, {**rows[2], "distance": 0.5}]}
    found = first_difference(other)
    assert (found.status, found.tensor) == (Status.FAIL, "blocks.0.norm1")
    assert found.suspects[0] == SYMPTOMS["not_like_reference"].suspects["epsilon"]
    assert first_difference({**same, "gradients": [{"name": "head.weight", "distance": 1.0}]}).status is Status.FAIL
    assert first_difference({**same, "modules": []}).status is Status.INCONCLUSIVE


def test_what_a_replay_says() -> None:
    first = {"module": "up", "operation": "mul", "dtype": "float16", "backward": False, "largest_input": 9e4}
    seen = {
        "step": 3,
        "rung": "fp16",
        "precision": "fp16",
        "then": [math.nan, math.nan],
        "now": [math.nan, math.nan],
        "same": True,
        "watched": {"first": first, "largest": [["up", 6e4]]},
        "fp32": {"first": None, "largest": [["up", 9e5]]},
        "without": None,
    }
    said = "\n".join(sentences(seen))
    assert "reproduces, bit for bit" in said
    assert "comes out of mul in up (float16" in said
    assert "more than the 65504 that fp16 has" in said
    assert "a race, or a host" in sentences({**seen, "same": False})[0]
    back = {
        **first,
        "operation": "div",
        "backward": True,
        "node": "SqrtBackward0",
        "call": "x.sqrt() (m.py:3, in forward)",
    }
    said = "\n".join(sentences({**seen, "precision": "bf16", "watched": {"first": back, "largest": []}}))
    assert "div in backward (SqrtBackward0 in up, of the call x.sqrt() (m.py:3, in forward))" in said
    assert "which bf16 has as well: what it rounds, to three digits, makes it" in said


def test_what_a_replay_says_of_a_step_that_jumped() -> None:
    seen = {
        "step": 70,
        "rung": "learn",
        "precision": "fp64",
        "then": [800.0, 40.0],
        "now": [800.0, 40.0],
        "targets": 100,
        "same": True,
        "usual": {"losses": [2.0, 2.1] * 10, "norms": [1.0] * 20},
        "each": [[17, 90.0], [3, 2.0], [4, 1.9]],
        "without": None,
    }
    _, jump, each, then = sentences(seen)
    assert jump.startswith("per target its loss is 8; in the middle of the 20 steps before it was 2.05, the gradient")
    assert each.endswith("the highest loss are 17 (90), 3 (2), 4 (1.9); the one in the middle has 2")
    assert then == "next: the same with --without-sample 17"
    left = {"numbers": [200.0, 1.1], "targets": 98, "first": None, "ids": [17]}
    assert sentences({**seen, "without": left})[-1].endswith("it does not jump")
    left = {"numbers": [790.0, 39.0], "targets": 98, "first": None, "ids": [3]}
    assert sentences({**seen, "without": left})[-1].endswith("it still jumps")


def test_the_table_of_triage() -> None:
    assert all(row.suspects and row.change and row.symptom for row in SYMPTOMS.values())
    assert [row.name for row in find("loss_stuck")] == ["loss_stuck"]
    assert "future_seen" in [row.name for row in find("causal mask")]
    assert SYMPTOMS["alignment"].ordered(["twice"])[0] == SYMPTOMS["alignment"].suspects["twice"]
    assert len(SYMPTOMS["alignment"].ordered(["twice"])) == len(SYMPTOMS["alignment"].suspects)
