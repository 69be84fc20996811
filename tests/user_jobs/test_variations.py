"""What right scripts do besides: the ladder stays quiet, or says why it cannot compare. None of it is a fault."""

from __future__ import annotations

from typing import Any

import pytest
from jobs_of_users import Job
from test_bad_jobs import findings

from dist_checks.matrix import ConfigError
from dist_checks.session import Outcome

AXES = {"dp_replicate": 2, "accum": 3}
LINEAR = "return x + self.mlp(self.ln_2(x))"
OPTIMIZER = """    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    probe = dist_checks.Probe.attach(model, optimizer)
"""
STEP = "        optimizer.step()\n"


def run(job: Job, *changes: tuple[str, str], **more: Any) -> Outcome:
    return job("nanogpt_ddp.py", "--accum {accum}", AXES, changes=changes, **more)


def test_dropout_cannot_be_compared(job: Job) -> None:
    outcome = run(job, (LINEAR, "return x + F.dropout(self.mlp(self.ln_2(x)), 0.1, self.training)"))
    assert (outcome.report["status"], outcome.report["blamed"]) == ("inconclusive", "not_comparable")
    assert "draws random numbers when it is called" in findings(outcome.report, "gradients", "accum3")[0][1]
    assert findings(outcome.report, "rng", "dp_replicate2")[0][0] == "pass", "the seed of all ranks may be one"


def test_neither_can_statistics_of_a_batch(job: Job) -> None:
    outcome = run(
        job,
        ("self.ln_2 = nn.LayerNorm(width)", "self.ln_2 = nn.BatchNorm1d(width)"),
        (LINEAR, "return x + self.mlp(self.ln_2(x.flatten(0, 1)).view_as(x))"),
    )
    assert (outcome.report["status"], outcome.report["blamed"]) == ("inconclusive", "not_comparable")
    said = findings(outcome.report, "gradients", "dp_replicate2")[0][1]
    assert "h.0.ln_2 takes its statistics over the samples of a forward pass, which are others under dp" in said
    assert findings(outcome.report, "replicas", "dp_replicate2")[0][0] == "pass", "running means are each rank's own"


def test_two_optimizers_that_step_in_another_order_one_of_them_in_bf16(job: Job) -> None:
    outcome = run(
        job,
        (
            OPTIMIZER,
            """    optimizer = torch.optim.Muon([p for p in model.parameters() if p.ndim == 2], lr=1e-2)
    second = torch.optim.SGD([p for p in model.parameters() if p.ndim != 2], lr=0.05)
    probe = dist_checks.Probe.attach(model, [optimizer, second])
""",
        ),
        (STEP, "        second.step()\n" + STEP),
        ("optimizer.zero_grad(set_to_none=True)", "model.zero_grad(set_to_none=True)"),
    )
    assert outcome.report["status"] == "pass", outcome.report["sentence"]


def test_an_evaluation_between_two_steps(job: Job) -> None:
    evaluate = """        model.eval()
        with torch.no_grad():
            model(x, y)
        model.train()
"""
    outcome = run(job, (STEP, STEP + evaluate))
    assert outcome.report["status"] == "pass", outcome.report["sentence"]


def test_a_graph_takes_no_hook_in(job: Job) -> None:
    outcome = run(job, ("    raw_model = model\n", '    raw_model = model = torch.compile(model, backend="eager")\n'))
    assert outcome.report["status"] == "pass", outcome.report["sentence"]
    assert "inside a graph of torch.compile" in findings(outcome.report, "engaged", "single")[0][1]


def test_a_precision_that_the_matrix_does_not_know_of(job: Job) -> None:
    changes = [("loss = model(x, y) / args.accum", "loss = compute(model, x, y) / args.accum")]
    compute = """def compute(model, x, y):
    with torch.autocast("cpu", torch.bfloat16):
        return model(x, y)


def main():"""
    changes.append(("def main():", compute))
    with pytest.raises(ConfigError, match='multiplies in bfloat16 with the precision axis off: say precision = "bf16"'):
        run(job, *changes)
    outcome = run(job, *changes, command={"precision": "bf16"})
    assert outcome.report["status"] == "pass", outcome.report["sentence"]


def test_a_block_that_is_frozen_has_no_gradients_that_could_vanish(job: Job) -> None:
    freeze = "    raw_model = model\n    model.h[0].requires_grad_(False)\n"
    optimizer = (
        "torch.optim.AdamW(model.parameters()",
        "torch.optim.AdamW([p for p in model.parameters() if p.requires_grad]",
    )
    outcome = run(job, ("    raw_model = model\n", freeze), optimizer)
    assert outcome.report["status"] == "pass", outcome.report["sentence"]


def test_another_order_on_one_device_is_said_to_be_one(job: Job) -> None:
    outcome = run(job, ("manual_seed(args.seed)\n\n", "manual_seed(args.seed + world)\n\n"))
    status, said = findings(outcome.report, "samples", "dp_replicate2")[0]
    assert status == "fail"
    assert "as many, but others: where one device shuffles by itself" in said


FSDP1_ALONE = """        policy = ModuleWrapPolicy({Layer})
        model = FSDP(model, auto_wrap_policy=policy, use_orig_params=True, device_id=torch.device("cpu"))
"""
FSDP1_OVER_TP = """        from torch.distributed.tensor import parallel

        tp = int(os.environ["TP"])
        mesh = dist.device_mesh.init_device_mesh("cpu", (world // tp, tp), mesh_dim_names=("dp", "tp"))
        rank, world = mesh.get_local_rank("dp"), world // tp
        if tp > 1:
            plan = {"layers.*.up": parallel.ColwiseParallel(), "layers.*.down": parallel.RowwiseParallel()}
            parallel.parallelize_module(model, mesh["tp"], plan)
        if world > 1:
            policy, device = ModuleWrapPolicy({Layer}), torch.device("cpu")
            model = FSDP(model, device_mesh=mesh["dp"], auto_wrap_policy=policy, use_orig_params=True, device_id=device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
"""


def test_fsdp1_around_a_tensor_parallel_model_is_not_read_and_no_pass_either(job: Job) -> None:
    accum = 'parser.add_argument("--accum", type=int, default=1)'
    outcome = job(
        "fsdp1.py",
        "--tp {tp}",
        {"dp_shard": 2, "tp": 2},
        select="dp_shard2+tp2",
        changes=[
            (FSDP1_ALONE, FSDP1_OVER_TP),
            (accum, accum + '\n    parser.add_argument("--tp", type=int, default=1)'),
            ('int(os.environ["TP"])', "args.tp"),
            # the norm that FSDP1 computes is no sum over tp
            ("            model.clip_grad_norm_(0.5)", "            pass"),
            ("            nn.utils.clip_grad_norm_(model.parameters(), 0.5)", "            pass"),
        ],
    )
    assert outcome.report["sentence"] == "PASS 2 rungs equal to one device; not read: dp_shard2+tp2"
    (rung,) = [rung for rung in outcome.report["rungs"] if rung["id"] == "dp_shard2+tp2"]
    assert rung["status"] == "skip"
    assert rung["checks"]["loss"] == rung["checks"]["samples"] == "pass"
    for check in ("engaged", "shards", "gradients", "updates"):
        assert "FSDP1 has flattened parameters that are DTensors" in findings(outcome.report, check, rung["id"])[0][1]
