"""Rung zero of scripts: what one device says of a loop that is not ours, by its probe and by hooks."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest
from jobs_of_users import Job
from test_bad_jobs import findings

from dist_checks.matrix import ConfigError, parse
from dist_checks.session import Outcome

LEARN, OVERFIT = {"learn": 60, "overfit": 0}, {"learn": 0, "overfit": 1}
Y = "y = torch.stack([data[i + 1 : i + 1 + args.block_size] for i in mine])"
LOGITS = "logits = self.lm_head(self.ln_f(x))"
OPTIMIZER = "torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)"


class Mistake(NamedTuple):
    right: str
    wrong: str
    check: str
    suspect: str
    """Words of the one that is named first."""
    words: str
    single: dict[str, Any] = LEARN


MISTAKES = {
    "the causal mask is missing": Mistake(
        "is_causal=True", "is_causal=False", "causal", "mask", "the model sees what it has to foretell"
    ),
    "attention reaches nothing": Mistake(
        "x = x + self.proj(y.transpose(1, 2).reshape(B, T, C))",
        "x = x + 0.0 * y.sum()",
        "causal",
        "",
        "no token reaches",
    ),
    "labels are the inputs": Mistake(
        Y, Y.replace("i + 1", "i"), "alignment", "does not shift", "100% of the targets are the token itself"
    ),
    "labels are shifted twice": Mistake(
        Y,
        Y.replace("i + 1", "i + 2"),
        "alignment",
        "again by the loss",
        "100% of the targets are the token after the next",
    ),
    "logits are multiplied": Mistake(LOGITS, LOGITS.replace("= ", "= 30 * "), "step_zero", "scale", "ln(17) is 2.833"),
    "units are dead": Mistake(
        "nn.GELU(), nn.Linear(4 * width, width))",
        "nn.ReLU(), nn.Linear(4 * width, width))\n        nn.init.constant_(self.mlp[0].bias, -20.0)",
        "activations",
        "bias",
        "100% of the units of relu in h.0.mlp.1 are zero for every token",
    ),
    "the rate is zero": Mistake("lr=1e-3", "lr=0.0", "overfit", "rate", "the loss went from 3.109 to 3.109", OVERFIT),
    "the optimizer holds copies": Mistake(
        OPTIMIZER,
        OPTIMIZER.replace("model.parameters()", "[nn.Parameter(p.detach().clone()) for p in model.parameters()]"),
        "optimizer_covers",
        "before the model was wrapped",
        "none of the model's",
        OVERFIT,
    ),
}


def alone(job: Job, script: str = "nanogpt_ddp.py", words: str = "", **matrix: Any) -> Outcome:
    return job(script, words, {}, **matrix)


@pytest.mark.parametrize("see", ["probe", "hooks"])
def test_a_healthy_script(job: Job, see: str) -> None:
    changes = [
        ("    probe = dist_checks.Probe.attach(model, optimizer)\n", ""),
        ("        probe.step(loss=total)\n", ""),
    ]
    report = alone(job, command={"see": see}, changes=changes if see == "hooks" else []).report
    assert report["status"] == "pass", report["sentence"]
    assert findings(report, "overfit", "overfit")[0][1].startswith("12 samples: the loss went from 3.109 to 0.0")
    for check in ("step_zero", "causal", "alignment", "loss_falls", "activations", "data_labels", "spikes", "clipping"):
        assert findings(report, check, "learn")[0][0] == "pass", check
    told = {rung["id"]: rung.get("health") for rung in report["rungs"]}["learn"]
    assert (told["data"]["samples"], len(told["data"]["labels"])) == (1024, 8)
    assert told["data"]["first_batch"]
    assert "ln(17) 2.83, entropy of labels 2.49, of pairs 1.2" in findings(report, "loss_falls", "learn")[0][1]


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(job: Job, name: str) -> None:
    mistake = MISTAKES[name]
    report = alone(job, mistake=(mistake.right, mistake.wrong), single=mistake.single).report
    assert (report["status"], report["blamed"]) == ("fail", "recipe"), report["sentence"]
    rung = "learn" if mistake.single is LEARN else "overfit"
    found = [f for f in report["findings"] if (f["rung"], f["check"], f["status"]) == (rung, mistake.check, "fail")]
    assert mistake.words in found[0]["message"]
    assert re.search(mistake.suspect, found[0]["suspects"][0])


def test_padding_that_counts(job: Job) -> None:
    wrong = ("words.masked_fill(padding, -100))", "words.masked_fill(padding, 0))")
    right = alone(job, "other_losses.py", "--kind LeftPadded", single={"learn": 2, "overfit": 0}).report
    report = alone(job, "other_losses.py", "--kind LeftPadded", single={"learn": 2, "overfit": 0}, mistake=wrong).report
    assert findings(right, "data_padding", "learn")[0] == (
        "pass",
        "0 of 143 targets of the first step are left out by the attention mask",
    )
    status, said = findings(report, "data_padding", "learn")[0]
    assert status == "fail"
    assert said == "of 176 targets of the first step 33 are tokens that the attention mask leaves out"


@pytest.mark.parametrize(
    ("told", "check", "rung", "words"),
    [
        ({"pad": 0}, "data_padding", "learn", "are at padding"),
        ({"begin": 0}, "data_special_tokens", "learn", "more than one"),
        ({"end": 16}, "data_special_tokens", "learn", "have no token that ends a text"),
        ({"spares_norms": True}, "weight_decay_groups", "single", "norms and biases have weight decay"),
    ],
)
def test_what_the_matrix_says_of_a_script(job: Job, told: dict[str, Any], check: str, rung: str, words: str) -> None:
    """Each is wrong of this script, whose text has spaces everywhere, and nothing of the kind."""
    report = alone(job, single={"learn": 2, "overfit": 0}, command=told).report
    status, said = findings(report, check, rung)[0]
    assert status == "fail"
    assert words in said


def test_classes_that_are_told_apart_and_one_that_is_not(job: Job) -> None:
    single = {"learn": 60, "overfit": 0}
    wrong = ("return self.layers(x)", "return self.layers(x)[:, [0, 1, 1]] - torch.tensor([0.0, 0.0, 1.0])")
    right = alone(job, "other_losses.py", "--kind Images", single=single).report
    report = alone(job, "other_losses.py", "--kind Images", single=single, mistake=wrong).report
    status, said = findings(right, "classes", "learn")[0]
    assert (status, said.split(";")[0]) == ("pass", "100% of 480 targets are right")
    status, said = findings(report, "classes", "learn")[0]
    assert status == "fail"
    assert "and none of the 150 of 2, 150 times taken for 1" in said


def test_statistics_in_16_bits(job: Job) -> None:
    autocast = (
        "loss = model(x, y) / args.accum",
        'with torch.autocast("cpu", torch.bfloat16):\n                    loss = model(x, y) / args.accum',
    )
    norm = ("self.mlp(self.ln_2(x))", "self.mlp(h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5))")
    before = ("return x + self.mlp", "h = x.bfloat16()\n        return x + self.mlp")
    asked = {"single": {"learn": 0, "overfit": 0}, "command": {"precision": "bf16"}}
    right, report = (alone(job, changes=changes, **asked).report for changes in ([autocast], [autocast, before, norm]))
    assert findings(right, "fp32_islands", "single")[0][0] == "pass"
    status, said = findings(report, "fp32_islands", "single")[0]
    assert (status, said) == ("fail", "computed in bfloat16: rsqrt in h.0, rsqrt in h.1")


def test_a_loader_is_held(job: Job) -> None:
    """Batches of a DataLoader, the loss outside of the model, a class for each sample, dropout."""
    report = alone(job, "accelerate_loop.py", single=OVERFIT).report
    assert report["status"] == "pass", report["sentence"]
    assert findings(report, "overfit", "overfit")[0][1].startswith("12 samples: the loss went from 1.6")


OUTSIDE = [
    ("def forward(self, idx, targets):", "def forward(self, idx):"),
    ("        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())", "        return logits"),
]


def test_targets_are_held_where_the_loss_is_outside_of_the_model(job: Job) -> None:
    loss = (
        "loss = model(x, y) / args.accum",
        "loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / args.accum",
    )
    report = alone(job, changes=[*OUTSIDE, loss], single=OVERFIT).report
    assert report["status"] == "pass", report["sentence"]
    assert findings(report, "overfit", "overfit")[0][1].startswith("12 samples: the loss went from 3.109 to 0.0")


def test_what_is_not_held_is_not_judged(job: Job) -> None:
    loss = ("loss = model(x, y) / args.accum", "loss = (model(x) - F.one_hot(y, 17)).square().mean() / args.accum")
    report = alone(job, changes=[*OUTSIDE, loss], single={**OVERFIT, "overfit_steps": 20}).report
    assert report["status"] == "inconclusive"
    said = findings(report, "overfit", "overfit")[0][1]
    assert said.startswith("the script read 20 different batches in 20 steps: batches of a DataLoader")


@pytest.mark.parametrize("kind", ["Masked", "Copying", "Tags", "LeftPadded", "Contrast", "Images", "Policy"])
def test_no_false_alarm_of_another_loss(job: Job, kind: str) -> None:
    """Each of them raised one, or would have, before its case was thought of."""
    report = alone(job, "other_losses.py", f"--kind {kind}", single={"learn": 100, "overfit": 1}).report
    assert not [f for f in report["findings"] if f["status"] == "fail"], report["sentence"]
    passed = {f["check"] for f in report["findings"] if f["status"] == "pass"}
    assert passed >= {"optimizer_covers", "grads_reach", "update_ratio", "activations"} - (
        {"activations"} if kind == "Contrast" else set()
    )
    assert ("overfit" in passed) == (kind != "Policy"), findings(report, "overfit", "overfit")


def test_trained_weights_are_no_fault_unless_the_script_says_that_there_are_none(job: Job) -> None:
    known = (LOGITS, LOGITS + " + 8.0 * F.one_hot(targets, self.lm_head.out_features)")  # as if it had been trained
    single = {"learn": 2, "overfit": 0}
    assert alone(job, changes=[known], single=single).report["status"] == "pass"
    leaks = alone(job, changes=[known], single=single, command={"starts_trained": False}).report
    assert findings(leaks, "step_zero", "single")[0][0] == leaks["status"] == "fail"
    assert alone(job, changes=[known], single=single, command={"starts_trained": True}).report["status"] == "pass"
    fresh = alone(job, single=single, command={"starts_trained": True}).report
    assert findings(fresh, "step_zero", "single")[0][0] == fresh["status"] == "fail"


def test_a_script_that_ends_after_its_epoch(job: Job) -> None:
    report = alone(job, "fsdp1.py", single={"learn": 60, "overfit": 1}).report
    assert report["status"] == "inconclusive"
    assert findings(report, "completes", "learn")[0] == (
        "skip",
        "the script came to its end after 8 of 60 steps: it reads no more epochs",
    )
    assert "8 steps, of 200 that it was asked for" in findings(report, "overfit", "overfit")[0][1]


@pytest.mark.parametrize(
    ("single", "argv", "said"),
    [
        (
            {"overfit": 8},
            "train.py --steps {steps}",
            "single.overfit: a script memorises its own first batch: expected 1",
        ),
        ({"learn": 60}, "train.py", "single.learn: expected a script that is told by {steps} how long to train"),
    ],
)
def test_what_cannot_be_asked(single: dict[str, Any], argv: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse({"command": {"argv": argv}, "single": single}, "m.toml")
