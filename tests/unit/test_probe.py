"""One process: what stands in the trace, and that recording it changes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from probe_reading import Key, rank_trace, recorded
from probed_loop import attach, batch, loss_of, made, train
from torch import nn

from dist_checks import Probe
from dist_checks.extent import Extent
from dist_checks.judging.reading import read
from dist_checks.probe import Record
from dist_checks.probe.digest import digest
from dist_checks.probe.recorder import Recorder
from dist_checks.trace import BEFORE, BUCKETS, Kind, Values


def same(a: Values, b: Values) -> bool:
    """Equal but for the order of float additions."""
    floats = zip((a.sum_squares, a.largest, *a.sketch), (b.sum_squares, b.largest, *b.sketch), strict=True)
    return a[:4] == b[:4] and all(x == pytest.approx(y, rel=1e-6, abs=1e-6) for x, y in floats)


def test_a_probe_that_nobody_asked_for_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIST_CHECKS_TRACE", raising=False)
    model, optimizer = made()
    probe = Probe.attach(model, optimizer)
    assert type(probe) is Probe
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not optimizer._optimizer_step_pre_hooks
    loader = [batch(0)]
    assert probe.watch(loader, ids="idx") is loader
    train(model, optimizer, probe)
    probe.close()


def test_the_package_and_an_inert_probe_need_no_torch() -> None:
    code = (
        "import sys, dist_checks; probe = dist_checks.Probe.attach(None, None); probe.step(1.0, 1); probe.close();"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, env={})


def test_the_header_says_who_and_what(tmp_path: Path) -> None:
    model, optimizer = made()
    attach(nn.DataParallel(model), optimizer, tmp_path, blocks={"blocks.0": model.blocks[0]}).close()
    header = rank_trace(tmp_path).header
    assert header["rung"] == "single"
    assert header["versions"]["torch"] == torch.__version__
    assert header["blocks"] == ["blocks.0"]
    table = {row["name"]: row for row in header["parameters"]}
    assert table["embedding.weight"] == {
        "name": "embedding.weight",
        "shape": [11, 6],
        "dtype": "float32",
        "trainable": True,
        "tied": None,
    }
    assert table["head.weight"]["tied"] == "embedding.weight"
    assert not table["frozen.weight"]["trainable"]
    (group,) = header["optimizer"]
    assert (group["class"], group["lr"], group["betas"]) == ("AdamW", 1e-2, [0.9, 0.999])
    assert set(group["parameters"]) == set(table) - {"head.weight", "frozen.weight", "frozen.bias"}


def test_weights_and_buffers_before_and_after_each_step(tmp_path: Path) -> None:
    model, optimizer = made()
    before = {name: digest(x) for name, x in model.state_dict().items()}
    probe = attach(model, optimizer, tmp_path)
    train(model, optimizer, probe, steps=1)
    after = {name: digest(x) for name, x in model.state_dict().items()}
    probe.close()
    found = recorded(tmp_path)
    for name in ("embedding.weight", "blocks.1.1.bias", "frozen.weight"):
        assert same(found[Key(Kind.WEIGHT, name, BEFORE)].values, before[name])
        assert same(found[Key(Kind.WEIGHT, name, 0)].values, after[name])
    assert Key(Kind.WEIGHT, "head.weight", 0) not in found
    assert same(found[Key(Kind.BUFFER, "scale", 0)].values, digest(torch.tensor([2.0])))
    assert same(found[Key(Kind.BUFFER, "seen", 0)].values, digest(torch.tensor(2)))
    assert found[Key(Kind.BUFFER, "seen", 0)].entry.dtype == "int64"


def test_gradients_before_clipping_and_as_applied(tmp_path: Path) -> None:
    model, optimizer = made()
    probe = attach(model, optimizer, tmp_path)
    loss_of(model, batch(0, 1)["tokens"]).backward()  # type: ignore[no-untyped-call]
    name, parameter = "blocks.0.1.weight", model.get_parameter("blocks.0.1.weight")
    assert parameter.grad is not None
    before = digest(parameter.grad)
    probe.gradients()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    clipped = digest(parameter.grad)
    optimizer.step()
    probe.step(loss_sum=1.0, targets=1)
    probe.close()
    found = recorded(tmp_path)
    assert same(found[Key(Kind.GRADIENT, name, 0)].values, before)
    assert same(found[Key(Kind.APPLIED, name, 0)].values, clipped)
    assert before.largest > 10 * clipped.largest
    assert Key(Kind.GRADIENT, "frozen.weight", 0) not in found
    assert same(found[Key(Kind.STATE, f"{name}/exp_avg", 0)].values, digest(optimizer.state[parameter]["exp_avg"]))
    assert not [key for key in found if key.name.endswith("/step")]


def test_the_loss_scale_is_divided_out(tmp_path: Path) -> None:
    model, optimizer = made()
    model.eval()
    block = model.blocks[0]
    for folder, scale in (("plain", 1.0), ("scaled", 1024.0)):
        probe = attach(model, optimizer, tmp_path / folder, blocks={"blocks.0": block})
        probe.micro_batch([5, 6], loss_scale=scale)
        (loss_of(model, batch(5, 6)["tokens"]) * scale).backward()  # type: ignore[no-untyped-call]
        probe.sample_gradient(7, loss_scale=scale)
        probe.gradients(loss_scale=scale)
        probe.close()
        optimizer.zero_grad()
    plain, scaled = recorded(tmp_path / "plain"), recorded(tmp_path / "scaled")
    for key in (
        Key(Kind.GRADIENT, "embedding.weight", 0),
        Key(Kind.SAMPLE_GRADIENT, "embedding.weight", 0, 7),
        Key(Kind.OUTPUT_GRADIENT, "blocks.0", 0, 6),
        Key(Kind.OUTPUT, "blocks.0", 0, 6),
    ):
        a, b = plain[key].values, scaled[key].values
        assert a._replace(fingerprint=0) == b._replace(fingerprint=0)


def test_a_fused_optimizer_unscales_inside_its_step(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    probe = attach(model, optimizer, tmp_path)
    scaler.scale(model(torch.ones(1, 4)).sum()).backward()
    probe.gradients(loss_scale=256.0)
    scaler.step(optimizer)
    probe.step(loss_sum=1.0, targets=1, loss_scale=256.0)
    probe.close()
    found = recorded(tmp_path)
    assert found[Key(Kind.APPLIED, "bias", 0)].values.largest == 1.0
    assert found[Key(Kind.APPLIED, "bias", 0)].values == found[Key(Kind.GRADIENT, "bias", 0)].values


def test_step_events(tmp_path: Path) -> None:
    model, optimizer = made()
    probe = attach(model, optimizer, tmp_path)
    train(model, optimizer, probe)
    probe.micro_batch([7], tokens=(0, 5, 10), epoch=3)
    probe.step(loss_sum=float("nan"), targets=3, loss_scale=2.0, skipped=True)
    probe.close()
    trace = rank_trace(tmp_path)
    first, second, third = (trace.steps[i] for i in range(3))
    assert first["ids"] == [0, 1, 2, 3]
    assert second["micro_batches"] == [[10, 11], [12, 13]]
    assert (first["tokens"], third["tokens"], third["epoch"]) == (None, [0, 5, 10], 3)
    assert (first["targets"], first["printed_loss"]) == (20, first["loss_sum"] / 20)
    assert first["learning_rates"] == third["learning_rates"] == [1e-2]
    assert (first["clip"], first["norm_used"]) == (1.0, first["norm_printed"])
    assert (third["clip"], third["norm_used"], third["loss_scale"], third["skipped"]) == (None, None, 2.0, True)
    assert third["loss_sum"] != third["loss_sum"]
    assert len(first["rng"]) == 16
    assert first["rng"] != second["rng"]
    assert first["seconds"] > 0
    assert trace.ended


def test_the_same_seed_has_the_same_rng_hash(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        model, optimizer = made(seed=3)
        probe = attach(model, optimizer, tmp_path / folder)
        train(model, optimizer, probe)
        probe.close()
    a, b = rank_trace(tmp_path / "a"), rank_trace(tmp_path / "b")
    assert [a.steps[i]["rng"] for i in range(2)] == [b.steps[i]["rng"] for i in range(2)]


def test_how_often_is_a_setting(tmp_path: Path) -> None:
    model, optimizer = made()
    probe = attach(model, optimizer, tmp_path, record=Record(every=2, first=0, state_every=2, applied=False))
    train(model, optimizer, probe, steps=6)
    probe.close()
    found = recorded(tmp_path)

    def steps(kind: Kind) -> list[int]:
        return sorted({key.step for key in found if key.kind is kind})

    assert steps(Kind.WEIGHT) == [BEFORE, 0, 2, 4]
    assert steps(Kind.GRADIENT) == [0, 2, 4]
    assert steps(Kind.STATE) == [0, 4]
    assert steps(Kind.APPLIED) == []
    assert sorted(rank_trace(tmp_path).steps) == list(range(6))
    often = Record(every=10, first=3, state_every=2)
    assert [step for step in range(41) if often.tensors_at(step)] == [0, 1, 2, 10, 20, 30, 40]
    assert [step for step in range(41) if often.state_at(step)] == [0, 2, 20, 40]
    with pytest.raises(ValueError, match=r"every \(0\) must be at least 1"):
        Record(every=0)


def test_a_probe_changes_no_bit_and_draws_no_random_number(tmp_path: Path) -> None:
    ends = []
    for folder in (None, tmp_path):
        model, optimizer = made()
        probe = (
            Probe()
            if folder is None
            else attach(
                model,
                optimizer,
                folder,
                blocks=dict(model.named_children()),
                record=Record(outputs_steps=9, state_every=1, narrowing=True),
            )
        )
        with torch.autocast("cpu", torch.bfloat16):
            train(model, optimizer, probe, steps=3)
        probe.close()
        ends.append((torch.get_rng_state(), *(x.clone() for x in model.state_dict().values())))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not optimizer._optimizer_step_pre_hooks


def test_watch_takes_the_ids_out_of_the_batches(tmp_path: Path) -> None:
    model, optimizer = made()
    probe = attach(model, optimizer, tmp_path)
    for _ in range(2):
        for b in probe.watch([batch(3, 1), batch(4)], ids="idx"):
            loss_of(model, b["tokens"]).backward()  # type: ignore[no-untyped-call]
            probe.step(loss_sum=0.0, targets=1)
    for _ in probe.watch([batch(9)], ids=lambda b: [int(b["idx"]) + 1]):
        probe.step(loss_sum=0.0, targets=1)
    probe.close()
    steps = rank_trace(tmp_path).steps
    assert [steps[i]["ids"] for i in range(5)] == [[3, 1], [4], [3, 1], [4], [10]]
    assert [steps[i]["epoch"] for i in range(5)] == [0, 0, 1, 1, 2]


def test_the_environment_asks_and_the_exit_of_python_closes(tmp_path: Path) -> None:
    code = """
import sys, torch
from dist_checks import Probe
model = torch.nn.Linear(2, 2)
probe = Probe.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
probe.step(loss_sum=1.0, targets=1)
if len(sys.argv) > 1:
    raise RuntimeError
"""
    ranks = []
    for name, arguments in (("good", []), ("bad", ["fail"])):
        env = {"DIST_CHECKS_TRACE": str(tmp_path / name), "RANK": "2", "WORLD_SIZE": "3", "OMP_NUM_THREADS": "1"}
        ranks.append(subprocess.Popen([sys.executable, "-c", code, *arguments], env=env, stderr=subprocess.DEVNULL))
    assert [rank.wait(timeout=100) for rank in ranks] == [0, 1]
    for name in ("good", "bad"):
        trace = rank_trace(tmp_path / name, rank=2)
        assert (trace.header["world_size"], trace.header["rung"]) == (3, name)
        assert list(trace.steps) == [0]
        assert trace.ended is (name == "good")


def test_a_crash_leaves_the_gradients_of_its_step(tmp_path: Path) -> None:
    model, optimizer = made()
    probe = attach(model, optimizer, tmp_path)

    def crash() -> None:
        with probe:
            train(model, optimizer, probe, steps=1)
            probe.micro_batch([8])
            loss_of(model, batch(8)["tokens"]).backward()  # type: ignore[no-untyped-call]
            probe.gradients()
            # Read now, as the judge would after SIGKILL: what was flushed is there.
            assert Key(Kind.GRADIENT, "blocks.0.1.weight", 1) in recorded(tmp_path)
            raise RuntimeError("in the user's loop")

    with pytest.raises(RuntimeError, match="in the user's loop"):
        crash()
    trace = rank_trace(tmp_path)
    assert list(trace.steps) == [0]
    assert trace.evidence["matmul_dtypes"] == ["float32"]
    assert not trace.ended
    assert read(tmp_path, 1).cut == "rank 0 did not come to the end"
    assert not optimizer._optimizer_step_pre_hooks
    probe.close()


def test_two_tensors_under_tied_names_are_both_recorded(tmp_path: Path) -> None:
    model, optimizer = made()
    model.head.weight = nn.Parameter(model.embedding.weight.detach().clone())
    attach(model, optimizer, tmp_path).close()
    found = recorded(tmp_path)
    assert same(
        found[Key(Kind.WEIGHT, "head.weight", BEFORE)].values,
        found[Key(Kind.WEIGHT, "embedding.weight", BEFORE)].values,
    )
    assert {row["tied"] for row in rank_trace(tmp_path).header["parameters"]} == {None}


def test_what_cannot_be_read_is_said_and_does_no_harm(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Embedding(7, 3, sparse=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = attach(model, optimizer, tmp_path)
    model(torch.tensor([1, 2])).sum().backward()
    probe.gradients()
    optimizer.step()
    probe.step(loss_sum=1.0, targets=1)
    probe.close()
    said = rank_trace(tmp_path).evidence["unrecorded"]
    assert {(row["kind"], row["name"]) for row in said} == {("gradient", "0.weight"), ("applied", "0.weight")}
    assert "sparse_coo" in said[0]["reason"]


def test_values_are_those_of_the_digest_in_any_default_dtype(tmp_path: Path) -> None:
    expected = digest(torch.arange(10.0))
    torch.set_default_dtype(torch.float64)
    try:
        model = nn.ParameterDict({"w": nn.Parameter(torch.arange(10, dtype=torch.float32))})
        attach(model, torch.optim.SGD(model.parameters(), lr=0.1), tmp_path).close()
    finally:
        torch.set_default_dtype(torch.float32)
    found = recorded(tmp_path)[Key(Kind.WEIGHT, "w", BEFORE)]
    assert found.values == expected
    assert len(found.values.sketch) == BUCKETS
    assert found.entry.extent == Extent.full([10])


def test_several_optimizers(tmp_path: Path) -> None:
    model, _ = made()
    optimizers = [
        torch.optim.SGD(model.blocks.parameters(), lr=0.1, momentum=0.9),
        torch.optim.AdamW([model.embedding.weight], lr=torch.tensor(0.25)),
    ]
    probe = Probe.attach(model, optimizers, folder=tmp_path, rank=0)
    assert isinstance(probe, Recorder)
    loss_of(model, batch(0)["tokens"]).backward()  # type: ignore[no-untyped-call]
    for optimizer in optimizers:
        optimizer.step()
    probe.step(loss_sum=1.0, targets=1)
    probe.close()
    trace, found = rank_trace(tmp_path), recorded(tmp_path)
    assert [group["class"] for group in trace.header["optimizer"]] == ["SGD", "AdamW"]
    assert trace.steps[0]["learning_rates"] == [0.1, 0.25]
    assert Key(Kind.STATE, "blocks.0.1.weight/momentum_buffer", 0) in found
    assert Key(Kind.APPLIED, "embedding.weight", 0) in found
    assert not [key for key in found if key.kind is Kind.GRADIENT]
