"""What is put around torchtitan's Trainer, on one that has its methods and nothing of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dist_checks.integrations.torchtitan import watch
from dist_checks.judging.reading import read
from dist_checks.probe import own
from dist_checks.probe.sample_ids import hashed
from dist_checks.trace import Kind

ROWS = torch.randint(9, (8, 4), generator=torch.Generator().manual_seed(1))
LABELS = torch.where(ROWS % 3 == 0, -100, ROWS)
VALID = (LABELS != -100).sum()


@pytest.fixture(autouse=True)
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DIST_CHECKS_TRACE", str(tmp_path / "single"))
    monkeypatch.delenv("DIST_CHECKS_RUNG", raising=False)
    monkeypatch.setattr(own, "_attached", None)
    yield
    own.finish()


class Trainer:
    """Two micro-batches a step; in a pipeline, they come in a list."""

    def __init__(self, stages: int = 1, last: bool = True) -> None:
        torch.manual_seed(0)
        layers = [nn.Embedding(9, 9), nn.Linear(9, 9)]
        self.model_parts: list[nn.Module] = [nn.ModuleDict({"0": layers[0], "1": layers[1]})]
        if stages > 1:
            self.model_parts = [nn.ModuleDict({str(at): layer}) for at, layer in enumerate(layers)]
            self.pp_has_last_stage = last
        self._layers = layers
        self.optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in self.model_parts]

    def post_dataloading_process(self, input_dict: dict[str, Tensor], labels: Tensor) -> tuple[Any, ...]:
        return input_dict["input"], labels, {}

    def forward_backward_step(self, *, input_dict: Any, labels: Any, global_valid_tokens: Tensor) -> Tensor:
        if isinstance(labels, Tensor):
            input_dict, labels = [input_dict], [labels]
        total = torch.tensor(0.0)
        for batch in zip(input_dict, labels, strict=True):
            x, y, _ = self.post_dataloading_process(*batch)
            x = self._layers[1](self._layers[0](x))
            loss = nn.functional.cross_entropy(x.flatten(0, 1), y.flatten(), reduction="sum") / global_valid_tokens
            loss.backward()  # type: ignore[no-untyped-call]
            total = total + loss.detach()
        return total

    def train_step(self, batches: Iterator[tuple[dict[str, Tensor], Tensor]]) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        groups = [next(batches), next(batches)]
        if len(self.model_parts) > 1:
            inputs, labels = [group[0] for group in groups], [group[1] for group in groups]
            self.forward_backward_step(input_dict=inputs, labels=labels, global_valid_tokens=VALID)
        else:
            for group, target in groups:
                self.forward_backward_step(input_dict=group, labels=target, global_valid_tokens=VALID)
        gradients = [p.grad for part in self.model_parts for p in part.parameters() if p.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        nn.utils.clip_grads_with_norm_([p for part in self.model_parts for p in part.parameters()], 0.01, norm)
        for optimizer in self.optimizers:
            optimizer.step()

    def train(self) -> None:
        batches = iter([({"input": ROWS[at : at + 4]}, LABELS[at : at + 4]) for at in (0, 4, 0)])
        self.train_step(batches)
        try:
            self.train_step(batches)
        except StopIteration:  # out of data in the middle of a step
            return


def test_it_is_left_alone_outside_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIST_CHECKS_TRACE")
    trainer = Trainer()
    assert watch(trainer) is trainer
    assert "train_step" not in vars(trainer)


@pytest.mark.parametrize(("stages", "last"), [(1, True), (2, True), (2, False)])
def test_a_step(stages: int, last: bool, tmp_path: Path) -> None:
    watch(Trainer(stages, last)).train()
    own.finish()
    trace = read(tmp_path / "single", 1).ranks[0]
    assert list(trace.steps) == [0], "a step that ran out of data is none"
    event = trace.steps[0]
    batches = [({"input": ROWS[at : at + 4]}, LABELS[at : at + 4]) for at in (0, 4)]
    assert event["micro_batches"] == [list(hashed(batch)) for batch in batches]
    assert event["gradients_at"] == own.CLIPPED
    assert event["clip"] == 0.01
    if last:
        assert event["targets"] == int(VALID)
        wanted = nn.functional.cross_entropy(first_logits(), LABELS.flatten(), reduction="sum")
        assert event["loss_sum"] == pytest.approx(wanted.item(), rel=1e-5)
    else:
        assert event["loss_sum"] is None
    names = {entry.name for entry in trace.entries.values() if entry.kind is Kind.GRADIENT}
    assert names == {"0.weight", "1.weight", "1.bias"}


def first_logits() -> Tensor:
    first, second = Trainer()._layers
    logits: Tensor = second(first(ROWS)).flatten(0, 1)
    return logits


def test_data_of_a_pipeline_is_told_also_where_the_harness_knows_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rung = {"id": "pp2", "setting": {"pp": 2}}
    monkeypatch.setenv("DIST_CHECKS_RUNG", json.dumps({"rung": rung}))
    watch(Trainer(2)).train()
    own.finish()
    assert len(read(tmp_path / "single", 1).ranks[0].steps[0]["ids"]) == 8
