"""Scripts of which no line is changed: seen by hooks, or only by what they print and save."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from jobs_of_users import HERE, Job
from parts import need
from test_bad_jobs import findings
from test_user_jobs import AXES, MISTAKES, NEEDS, SCRIPTS

WORDS = re.compile("probe|dist_checks|DistChecks")

LOG = {
    "see": "log",
    "loss": r"step (?P<step>\d+): loss (?P<loss>\S+),",
    "checkpoint": "{out}/ckpt.pt",
}


@pytest.fixture
def without_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripts as they were before anybody had heard of a probe."""

    read = Path.read_text

    def text(path: Path, *args: Any, **kwargs: Any) -> str:
        found = read(path, *args, **kwargs)
        if path.parent != HERE:
            return found
        lines = [line.replace("probe.watch(loader)", "loader") for line in found.splitlines()]
        return "\n".join(line for line in lines if not WORDS.search(line))

    monkeypatch.setattr(Path, "read_text", text)


@pytest.mark.usefixtures("without_probe")
@pytest.mark.parametrize("script", ["nanogpt_ddp.py", "fsdp2_tp.py", "transformers_trainer.py", "accelerate_loop.py"])
def test_hooks(script: str, job: Job) -> None:
    if script in NEEDS:
        need(NEEDS[script])
    outcome = job(script, SCRIPTS[script], AXES[script], command={"see": "hooks"})
    assert outcome.report["status"] == "pass", outcome.report["sentence"]
    several = [rung for rung in outcome.report["rungs"] if rung["role"] == "rung" and rung["world_size"] > 1]
    for rung in several:
        for check in ("engaged", "samples", "initial_weights", "shards", "loss", "gradients", "updates"):
            assert rung["checks"][check] == "pass", (rung["id"], check)


@pytest.mark.usefixtures("without_probe")
@pytest.mark.parametrize("name", ["sync after forward", "divided twice", "tokens averaged on each device"])
def test_hooks_see_a_mistake(name: str, job: Job) -> None:
    mistake = MISTAKES[name]
    if mistake.script in NEEDS:
        need(NEEDS[mistake.script])
    outcome = job(
        mistake.script,
        SCRIPTS[mistake.script],
        AXES[mistake.script],
        mistake=(mistake.right, mistake.wrong),
        command={"see": "hooks"},
    )
    assert [" x ".join(broken["axes"]) for broken in outcome.report["broken"]] == [mistake.blamed]


ADAMW = "optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)"
AROUND_IT = """class All(torch.optim.Optimizer):
        def __init__(self, *inner):
            self.inner = inner
            super().__init__([p for each in inner for group in each.param_groups for p in group["params"]], {"lr": 0.0})

        def step(self):
            for each in self.inner:
                each.step()

    optimizer = All(torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1))"""


@pytest.mark.usefixtures("without_probe")
def test_an_optimizer_around_others_is_not_counted_besides_them(job: Job) -> None:
    """As torchtitan's OptimizersContainer."""
    around = (ADAMW, AROUND_IT)
    outcome = job("nanogpt_ddp.py", "", {"dp_replicate": 2}, changes=[around], command={"see": "hooks"})
    assert outcome.report["status"] == "pass", outcome.report["sentence"]


@pytest.mark.usefixtures("without_probe")
def test_a_log_and_a_checkpoint(job: Job) -> None:
    outcome = job("nanogpt_ddp.py", "--save {out}/ckpt.pt --accum {accum}", AXES["nanogpt_ddp.py"], command=LOG)
    assert outcome.report["status"] == "pass", outcome.report["sentence"]
    for rung in outcome.report["rungs"]:
        if rung["role"] == "rung":
            assert (rung["checks"]["loss"], rung["checks"]["updates"]) == ("pass", "pass"), rung["id"]
    ((status, message),) = findings(outcome.report, "gradients", "dp_replicate2")
    assert status == "skip"
    assert "to see it, add probe = dist_checks.Probe.attach(model, optimizer)" in message
    assert "command.see = 'hooks'" in message


FRAMEWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformers_trainer.py": (
        "--accum {accum} --out {out} --save",
        {"see": "log", "loss": r"'loss': '?(?P<loss>[-+.\de]+)", "checkpoint": "{out}/model.safetensors"},
    ),
    "accelerate_loop.py": (
        "--accum {accum} --save {out}/ckpt.pt",
        LOG | {"loss": r"step (?P<step>\d+): loss (?P<loss>\S+)"},
    ),
}


@pytest.mark.usefixtures("without_probe")
@pytest.mark.parametrize("script", FRAMEWORKS)
def test_what_frameworks_print_and_save(script: str, job: Job) -> None:
    need(NEEDS[script])
    words, command = FRAMEWORKS[script]
    outcome = job(script, words, AXES[script], command=command)
    assert outcome.report["status"] == "pass", outcome.report["sentence"]
    for rung in outcome.report["rungs"]:
        if rung["role"] == "rung":
            assert (rung["checks"]["loss"], rung["checks"]["updates"]) == ("pass", "pass"), rung["id"]


@pytest.mark.usefixtures("without_probe")
@pytest.mark.parametrize("name", ["tokens averaged on each device", "loader not prepared"])
def test_a_mistake_in_what_frameworks_print_and_save(name: str, job: Job) -> None:
    mistake = MISTAKES[name]
    need(NEEDS[mistake.script])
    words, command = FRAMEWORKS[mistake.script]
    outcome = job(mistake.script, words, {"dp_replicate": 2}, mistake=mistake[1:3], command=command)
    (broken,) = outcome.report["broken"]
    assert broken["axes"] == ["dp_replicate"]


@pytest.mark.usefixtures("without_probe")
def test_a_log_shows_that_samples_are_read_twice(job: Job) -> None:
    mistake = MISTAKES["same samples"]
    outcome = job("nanogpt_ddp.py", "--save {out}/ckpt.pt", {"dp_replicate": 2}, mistake=mistake[1:3], command=LOG)
    (broken,) = outcome.report["broken"]
    assert (broken["axes"], broken["check"]) == (["dp_replicate"], "loss")


@pytest.mark.usefixtures("without_probe")
def test_a_checkpoint_shows_what_the_printed_loss_hides(job: Job) -> None:
    """The last micro-batch is not reduced: all losses are right but for what the wrong weights do to them."""
    mistake = MISTAKES["sync after forward"]
    outcome = job(
        "nanogpt_ddp.py",
        "--save {out}/ckpt.pt --accum {accum}",
        AXES["nanogpt_ddp.py"],
        mistake=mistake[1:3],
        command=LOG,
        steps=1,
    )
    (broken,) = outcome.report["broken"]
    assert (broken["axes"], broken["check"]) == (["accum", "dp_replicate"], "updates")


@pytest.mark.usefixtures("without_probe")
def test_a_script_that_prints_no_loss_and_saves_nothing(job: Job) -> None:
    outcome = job("nanogpt_ddp.py", "", {"dp_replicate": 2}, command=LOG | {"loss": "LOSS = (.*)"})
    assert outcome.report["status"] == "inconclusive"
    ((status, message),) = findings(outcome.report, "loss", "dp_replicate2")
    assert status == "skip"
    assert message.startswith("nothing that it prints fits command.loss (LOSS = (.*)): to see it, add probe")
    ((_, message),) = findings(outcome.report, "updates", "dp_replicate2")
    assert "the script left no ckpt.pt" in message
