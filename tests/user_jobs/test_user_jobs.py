"""Scripts of users: healthy ones pass, with a few lines added, and what is wrong in them is blamed on its axis."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest
from jobs_of_users import HERE, Job
from parts import need

SCRIPTS = {
    "nanogpt_ddp.py": "--accum {accum}",
    "fsdp2_tp.py": "--tp {tp}",
    "deepspeed_zero.py": "--zero {zero} --accum {accum}",
    "transformers_trainer.py": "--accum {accum} --out {out}",
    "accelerate_loop.py": "--accum {accum}",
    "lightning_fit.py": "--accum {accum}",
    "fsdp1.py": "--accum {accum}",
}
NEEDS = {
    "deepspeed_zero.py": "deepspeed",
    "transformers_trainer.py": "transformers",
    "accelerate_loop.py": "accelerate",
    "lightning_fit.py": "pytorch_lightning",
}
AXES: dict[str, dict[str, Any]] = {
    "nanogpt_ddp.py": {"dp_replicate": 2, "accum": 3},
    "fsdp2_tp.py": {"dp_shard": 2, "tp": 2},
    "deepspeed_zero.py": {"dp_replicate": 2, "zero": 2, "accum": 3},
    "transformers_trainer.py": {"dp_replicate": 2, "accum": 3},
    "accelerate_loop.py": {"dp_replicate": 2, "accum": 3},
    "lightning_fit.py": {"dp_replicate": 2, "accum": 3},
    "fsdp1.py": {"dp_shard": 2, "accum": 2},
}


class Mistake(NamedTuple):
    script: str
    right: str
    wrong: str
    blamed: str
    check: str
    words: str


MISTAKES = {
    # karpathy/build-nanogpt PR#30: the flag is set after forward, which has prepared the reduction
    "sync after forward": Mistake(
        "nanogpt_ddp.py",
        """            with model.no_sync() if ddp and not last else nullcontext():
                loss = model(x, y) / args.accum
                loss.backward()
""",
        """            loss = model(x, y) / args.accum
            model.require_backward_grad_sync = last
            loss.backward()
""",
        "accum x dp_replicate",
        "replicas",
        "hold different gradients",
    ),
    "loss not divided": Mistake(
        "nanogpt_ddp.py",
        "loss = model(x, y) / args.accum",
        "loss = model(x, y)",
        "accum",
        "gradients",
        "Every gradient is 3 x the reference: not divided by accum (3)",
    ),
    # k2-fsa/icefall#1616 on every host
    "same samples": Mistake(
        "nanogpt_ddp.py",
        "starts[rank::world]",
        "starts[0::world]",
        "dp_replicate",
        "samples",
        "ranks 0 and 1 both read",
    ),
    # deepspeedai/DeepSpeed#99
    "sampler over the world": Mistake(
        "fsdp2_tp.py",
        "DistributedSampler(data, dp, dp_rank, seed=args.seed)",
        'DistributedSampler(data, int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"]), seed=args.seed)',
        "tp",
        "samples",
        "work together (tp) and read different samples",
    ),
    # huggingface/transformers#37474
    "averaged twice": Mistake(
        "fsdp2_tp.py", "(loss * dp / total)", "(loss / total)", "dp_shard", "gradients", "scale 0.5,"
    ),
    "divided by hand as well": Mistake(
        "deepspeed_zero.py",
        "engine.backward(loss)",
        "engine.backward(loss / args.accum)",
        "accum",
        "gradients",
        "scale 0.3333,",
    ),
    "sum over the global batch": Mistake(
        "deepspeed_zero.py",
        "F.cross_entropy(engine(x), y)",
        'F.cross_entropy(engine(x), y, reduction="sum") / (args.batch // args.accum)',
        "dp_replicate",
        "gradients",
        "scale 0.5,",
    ),
    # huggingface/transformers#34242: every rank divides by its own number of targets
    "tokens averaged on each device": Mistake(
        "transformers_trainer.py",
        "average_tokens_across_devices=True",
        "average_tokens_across_devices=False",
        "dp_replicate",
        "gradients",
        "",
    ),
    # Samples that two ranks should share out, and each reads by itself
    "loader cut by nobody": Mistake(
        "transformers_trainer.py",
        "trainer.train()",
        "trainer.get_train_dataloader = lambda: torch.utils.data.DataLoader(\n"
        "        trainer.train_dataset, trainer.args.per_device_train_batch_size\n"
        "    )\n"
        "    trainer.train()",
        "dp_replicate",
        "samples",
        "ranks 0 and 1 both read",
    ),
    "divided twice": Mistake(
        "accelerate_loop.py",
        "accelerator.backward(loss)",
        "accelerator.backward(loss / args.accum)",
        "accum",
        "gradients",
        "scale 0.3333,",
    ),
    "loader not prepared": Mistake(
        "accelerate_loop.py",
        "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)",
        "model, optimizer = accelerator.prepare(model, optimizer)",
        "dp_replicate",
        "samples",
        "ranks 0 and 1 both read",
    ),
    # huggingface/accelerate#3256: the optimizer was made before the parameters were replaced
    "stale parameters": Mistake("fsdp1.py", "use_orig_params=True", "use_orig_params=False", "dp_shard", "updates", ""),
    # RLinf/RLinf PR#1558: each rank clips by the norm of its own shard
    "local norm": Mistake(
        "fsdp1.py",
        "model.clip_grad_norm_(0.5)",
        "nn.utils.clip_grad_norm_(model.parameters(), 0.5)",
        "dp_shard",
        "grad_norm",
        "",
    ),
    "divided as well as Lightning": Mistake(
        "lightning_fit.py",
        "return loss",
        "return loss / self.trainer.accumulate_grad_batches",
        "accum",
        "gradients",
        "scale 0.3333,",
    ),
    "sampler cut by nobody": Mistake(
        "lightning_fit.py",
        "DistributedSampler(data, world, rank, seed=args.seed)",
        "DistributedSampler(data, 1, 0, seed=args.seed)",
        "dp_replicate",
        "samples",
        "ranks 0 and 1 both read",
    ),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_healthy(script: str, job: Job) -> None:
    if script in NEEDS:
        need(NEEDS[script])
    outcome = job(script, SCRIPTS[script], AXES[script])
    assert outcome.report["status"] == "pass", outcome.report["sentence"]
    checks = {rung["id"]: rung["checks"] for rung in outcome.report["rungs"]}
    several = [rung for rung in outcome.report["rungs"] if rung["role"] == "rung" and rung["world_size"] > 1]
    for rung in several:
        for check in ("launch", "engaged", "samples", "initial_weights", "shards", "loss", "gradients"):
            assert checks[rung["id"]][check] == "pass", (rung["id"], check)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name: str, job: Job) -> None:
    mistake = MISTAKES[name]
    if mistake.script in NEEDS:
        need(NEEDS[mistake.script])
    outcome = job(mistake.script, SCRIPTS[mistake.script], AXES[mistake.script], mistake=(mistake.right, mistake.wrong))
    report = outcome.report
    assert report["status"] == "fail"
    assert [" x ".join(broken["axes"]) for broken in report["broken"]] == [mistake.blamed], report["sentence"]
    found = [f["message"] for f in report["findings"] if f["check"] == mistake.check and f["status"] == "fail"]
    assert any(mistake.words in message for message in found), found


@pytest.mark.parametrize("script", SCRIPTS)
def test_lines_that_a_user_adds(script: str) -> None:
    """Without the import: what README promises is five at most."""
    lines = [line for line in (HERE / script).read_text().splitlines() if re.search(r"probe|Callback\(", line)]
    assert 1 <= len(lines) <= 5, lines
