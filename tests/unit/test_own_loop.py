"""The probe in a loop that says little: samples, gradients and parts are seen all the same."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from parts import need
from probe_reading import Key, rank_trace, recorded
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dist_checks import Probe
from dist_checks.judging.reading import read
from dist_checks.probe import own
from dist_checks.probe.extents import Unreadable
from dist_checks.probe.placed import PlacedHolding, Sharded, declared
from dist_checks.probe.sample_ids import hashed, sampled
from dist_checks.trace import Kind


@pytest.fixture(autouse=True)
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DIST_CHECKS_TRACE", str(tmp_path / "single"))
    monkeypatch.delenv("DIST_CHECKS_RUNG", raising=False)
    monkeypatch.setattr(own, "_attached", None)
    yield
    own.finish()


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


TOKENS = torch.randint(9, (6, 3), generator=torch.Generator().manual_seed(1))


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x), x[:, 0] % 2)


def step(folder: Path, index: int) -> Any:
    return read(folder / "single", 1).ranks[0].steps[index]


def test_two_lines_are_enough(tmp_path: Path) -> None:
    model, optimizer = made()
    probe = Probe.attach(model, optimizer)
    for _ in range(2):
        loss = loss_of(model, TOKENS)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss=loss.item())
        with torch.no_grad():
            model(TOKENS)  # looking at the loss of other samples is no step
    own.finish()
    event = step(tmp_path, 1)
    assert event["ids"] == list(hashed(TOKENS))
    assert event["ids_from"] == "inputs"
    assert event["gradients_at"] == own.CLIPPED
    assert event["clip"] == 0.1
    assert event["targets"] == 6
    assert not event["skipped"]
    kinds = {entry.kind for entry in read(tmp_path / "single", 1).ranks[0].entries.values()}
    assert {Kind.GRADIENT, Kind.APPLIED, Kind.WEIGHT} <= kinds


def test_gradients_are_those_before_clipping(tmp_path: Path) -> None:
    model, optimizer = made()
    probe = Probe.attach(model, optimizer)
    loss_of(model, TOKENS).backward()
    from torch.nn.utils import clip_grad_norm_ as imported_by_name

    norm = imported_by_name(model.parameters(), 1e-3)
    optimizer.step()
    probe.step(loss=1.0)
    own.finish()
    trace = rank_trace(tmp_path / "single")
    squares = {
        kind: sum(
            record["sum_squares"]
            for record in trace.digests.take(slice(None))  # type: ignore[arg-type]
            if trace.entries[int(record["entry"])].kind is kind
        )
        for kind in (Kind.GRADIENT, Kind.APPLIED)
    }
    assert squares[Kind.GRADIENT] ** 0.5 == pytest.approx(norm.item(), rel=1e-6)
    assert squares[Kind.APPLIED] ** 0.5 == pytest.approx(1e-3, rel=1e-3)


def test_without_clipping_the_optimizer_tells_and_a_step_it_does_not_take_was_skipped(tmp_path: Path) -> None:
    model, optimizer = made()
    probe = Probe.attach(model, optimizer)
    loss_of(model, TOKENS).backward()
    optimizer.step()
    probe.step(loss=1.0)
    loss_of(model, TOKENS).backward()
    probe.step(loss=1.0)
    own.finish()
    assert step(tmp_path, 0)["gradients_at"] == own.STEPPED
    assert step(tmp_path, 1)["skipped"]


def test_ids_of_the_sampler_also_where_workers_are_ahead_and_batches_are_fetched_early() -> None:
    data = TensorDataset(torch.arange(10), torch.arange(10))
    loader = DataLoader(data, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(3))
    for _ in range(2):
        for (rows, _), ids in sampled(loader):
            assert rows.tolist() == list(ids)
    assert len(loader.batch_sampler) == 3  # type: ignore[arg-type]


def test_a_batch_that_is_fetched_before_the_step_ends_belongs_to_the_next(tmp_path: Path) -> None:
    model, optimizer = made()
    probe = Probe.attach(model, optimizer)
    batches = iter(probe.watch(DataLoader(TensorDataset(TOKENS), batch_size=3)))
    (x,) = next(batches)
    for last in (False, True):
        loss_of(model, x).backward()
        if not last:
            (x,) = next(batches)
        optimizer.step()
        probe.step(loss=1.0)
    own.finish()
    assert [step(tmp_path, index)["ids"] for index in (0, 1)] == [[0, 1, 2], [3, 4, 5]]


def test_hashes_are_of_samples_whatever_their_batch() -> None:
    x, y = TOKENS, TOKENS[:, :1]
    whole = hashed({"x": x, "y": y})
    assert len(set(whole)) == 6
    assert hashed([{"x": x[2:4], "y": y[2:4]}, 3.0]) == whole[2:4]
    assert hashed({"x": x + 1, "y": y}) != whole
    assert hashed("nothing") == ()


def test_a_second_model_is_told_that_it_is_not_recorded() -> None:
    model, optimizer = made()
    Probe.attach(model, optimizer)
    with pytest.warns(UserWarning, match="the first model is recorded, this one is not"):
        assert type(Probe.attach(model, optimizer)) is Probe


def test_the_harness_says_which_rung_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rung = {"id": "tp2", "setting": {"tp": 2}, "role": "rung", "precision": "fp32"}
    monkeypatch.setenv("DIST_CHECKS_RUNG", json.dumps({"rung": rung, "options": {"lr": 1}}))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    Probe.attach(*made())
    own.finish()
    header = read(tmp_path / "single", 2).ranks[0].header
    assert (header["rung"], header["coordinates"]["tp"], header["options"]) == ("tp2", 1, {"lr": 1})


def test_a_step_with_a_closure_is_seen_where_its_gradients_are_there(tmp_path: Path) -> None:
    """Lightning's, and LBFGS: forward and backward run inside of the step."""
    model, optimizer = made()
    probe = Probe.attach(model, optimizer)

    def closure() -> float:
        optimizer.zero_grad()
        loss = loss_of(model, TOKENS)
        loss.backward()
        return loss.item()

    probe.step(loss=optimizer.step(closure))
    probe.step(loss=optimizer.step(closure=closure))
    own.finish()
    found = recorded(tmp_path / "single")
    for index in (0, 1):
        weights = [found[Key(Kind.WEIGHT, "2.weight", at)].values.sketch for at in (index - 1, index)]
        moved = [(before - after) / 0.1 for before, after in zip(*weights, strict=True)]
        for kind in (Kind.GRADIENT, Kind.APPLIED):
            assert found[Key(kind, "2.weight", index)].values.sketch == pytest.approx(moved, rel=1e-3, abs=1e-5)
    assert step(tmp_path, 1)["gradients_at"] == own.STEPPED


def test_where_a_framework_reads_the_loader_epochs_are_those_of_its_sampler(tmp_path: Path) -> None:
    model, optimizer = made()
    probe = Probe.attach(model, optimizer)
    loader = DataLoader(TensorDataset(TOKENS), batch_size=3)
    assert isinstance(probe, own.OwnLoop)
    probe.overhear(loader)
    for _ in range(2):
        for (x,) in loader:
            loss_of(model, x).backward()
            optimizer.step()
            probe.step(loss=1.0)
    own.finish()
    told = [step(tmp_path, index) for index in range(4)]
    assert [event["epoch"] for event in told] == [0, 0, 1, 1]
    assert [event["ids"] for event in told] == [[0, 1, 2], [3, 4, 5]] * 2
    assert told[0]["ids_from"] == "sampler"


def test_a_stream_has_no_sampler(tmp_path: Path) -> None:
    model, optimizer = made()
    probe = Probe.attach(model, optimizer)
    for x in probe.watch([TOKENS]):
        loss_of(model, x).backward()
        optimizer.step()
        probe.step(loss=1.0)
    own.finish()
    assert step(tmp_path, 0)["ids"] == list(hashed(TOKENS))
    assert step(tmp_path, 0)["ids_from"] == "inputs"


def test_in_production_it_is_written_down_what_was_read_in_the_first_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIST_CHECKS_EVERY", "4")
    model, optimizer = made()
    probe = Probe.attach(model, optimizer)
    for index in range(8):
        loss_of(model, TOKENS.flip(0) if index % 2 else TOKENS).backward()
        optimizer.step()
        probe.step(loss=1.0)
    own.finish()
    trace = read(tmp_path / "single", 1).ranks[0]
    assert sorted(trace.steps) == [0, 4]
    assert sorted(trace.read) == [1, 2, 3]
    assert trace.read[2]["ids"] == list(hashed(TOKENS)) == trace.steps[4]["ids"]


def test_parts_by_megatrons_attributes_and_by_declaration() -> None:
    model = nn.Module()
    model.gate_up = nn.Parameter(torch.arange(8.0).reshape(4, 2))  # 4 rows of 2 x 4: two of gate, two of up
    model.row = nn.Parameter(torch.ones(3, 2))
    model.norm = nn.Parameter(torch.ones(2))
    for name, value in {"tensor_model_parallel": True, "partition_dim": 0, "partition_stride": 2}.items():
        setattr(model.gate_up, name, value)
    held = PlacedHolding(model, (), {"row": Sharded(dim=1, index=1, of=3)}, tp=(1, 2))
    found = [(name, getattr(part, "extent", None)) for name, part in held.weights()]
    boxes = [(name, extent.shape, extent.boxes[0].offset) for name, extent in found if extent]
    assert boxes == [("gate_up", (8, 2), (2, 0)), ("gate_up", (8, 2), (6, 0)), ("row", (3, 6), (0, 2))]
    assert [row["shape"] for row in held.table({})] == [[8, 2], [3, 6], [2]]


def test_attributes_that_megatron_core_sets() -> None:
    need("megatron")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.tensor_parallel import set_tensor_model_parallel_attributes
    model = nn.Module()
    model.gate_up, model.row = nn.Parameter(torch.zeros(4, 2)), nn.Parameter(torch.zeros(3, 2))
    set_tensor_model_parallel_attributes(model.gate_up, True, 0, 2)
    set_tensor_model_parallel_attributes(model.row, True, 1, 1)
    assert declared(model, (1, 2))
    found = [(name, getattr(part, "extent", None)) for name, part in PlacedHolding(model, (), {}, tp=(1, 2)).weights()]
    boxes = [(name, extent.shape, extent.boxes[0].offset) for name, extent in found if extent]
    assert boxes == [("gate_up", (8, 2), (2, 0)), ("gate_up", (8, 2), (6, 0)), ("row", (3, 4), (0, 2))]


def test_a_job_in_production_goes_on_where_its_model_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: Any) -> None:
        raise Unreadable("its parts are not known")

    monkeypatch.setattr(own, "holding_of", unreadable)
    with pytest.raises(Unreadable):  # in a run of the harness it is told
        Probe.attach(*made())
    monkeypatch.setenv("DIST_CHECKS_EVERY", "10")
    with pytest.warns(UserWarning, match="records nothing of this job: its parts are not known"):
        probe = Probe.attach(*made())
    probe.step(loss=1.0)
