"""What is heard and asked of a script on one device: its loss, its calls, its batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.functional import cross_entropy, dropout
from torch.utils.data import DataLoader, TensorDataset

from dist_checks.looks import held
from dist_checks.looks.called import Call, Outputs, names_of
from dist_checks.looks.causal import causal
from dist_checks.looks.cross_entropy import Ear, Heard
from dist_checks.looks.samples import Samples
from dist_checks.looks.script import Script
from dist_checks.looks.statistics import split
from dist_checks.recipes.base import IGNORE, Batch
from dist_checks.rung import Role

LOGITS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
TARGETS = torch.tensor([0, 1, 2, 3, IGNORE, 1])
MEAN = float(F.cross_entropy(LOGITS, TARGETS))


@pytest.fixture
def heard() -> Iterator[list[Heard]]:
    out: list[Heard] = []
    ear = Ear(out.append)
    yield out
    ear.stop()
    F.cross_entropy(LOGITS, TARGETS)
    assert len(out) == 1, "each test calls one loss, and nothing is heard afterwards"


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_loss_is_heard_by_whatever_name_and_sum(heard: list[Heard], reduction: str) -> None:
    result = cross_entropy(LOGITS, TARGETS, reduction=reduction)  # a name that was imported before
    assert torch.equal(heard[0].result, result)
    assert (heard[0].classes, heard[0].count) == (4, 5)
    assert heard[0].mean == pytest.approx(MEAN, rel=1e-6)


def test_so_is_a_likelihood(heard: list[Heard]) -> None:
    F.nll_loss(F.log_softmax(LOGITS, -1), TARGETS)
    assert heard[0].mean == pytest.approx(MEAN, rel=1e-6)


def test_classes_may_come_before_places(heard: list[Heard]) -> None:
    nn.CrossEntropyLoss()(LOGITS.view(2, 3, 4).movedim(-1, 1), TARGETS.view(2, 3))
    assert torch.equal(heard[0].logits, LOGITS)
    assert torch.equal(heard[0].targets, TARGETS)


def test_smoothed_labels_cost_something(heard: list[Heard]) -> None:
    best = torch.tensor([[0.85, 0.05, 0.05, 0.05]]).log()
    loss = F.cross_entropy(best, torch.tensor([0]), label_smoothing=0.2)
    assert heard[0].floor == pytest.approx(float(loss), rel=1e-6)


def test_probabilities_are_no_targets() -> None:
    out: list[Heard] = []
    ear = Ear(out.append)
    F.cross_entropy(LOGITS, LOGITS.softmax(-1))
    ear.stop()
    assert not out


TOKENS = torch.arange(12).view(2, 6)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((TOKENS,), {}),
        ((TOKENS, TOKENS + 1), {}),
        ((torch.ones(2, 1), TOKENS), {}),
        ((), {"attention_mask": torch.ones(2, 6, dtype=torch.long), "input_ids": TOKENS, "labels": TOKENS}),
        (({"attention_mask": torch.ones(2, 6, dtype=torch.long), "input_ids": TOKENS},), {}),
    ],
)
def test_inputs_are_found_and_replaced(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    call = Call(args, kwargs).copy()
    assert call.inputs is not None
    assert torch.equal(call.inputs, TOKENS)
    again = call.instead(TOKENS + 5)
    assert torch.equal(again.inputs, TOKENS + 5)  # type: ignore[arg-type]
    assert torch.equal(call.inputs, TOKENS)


def test_a_mask_is_known_by_the_name_that_forward_gives_it() -> None:
    model = Attending(causal=True, inside=False)
    assert names_of(model) == ("idx", "labels")
    assert names_of(nn.DataParallel(model)) == ()
    mask = torch.ones_like(TOKENS)
    assert Call((TOKENS, mask), {}, ("input_ids", "attention_mask")).mask is mask
    assert Call((TOKENS, mask), {}).mask is None


class Attending(nn.Module):
    """Each output is the mean of what is before it, or of all; its loss is computed inside, or not."""

    def __init__(self, *, causal: bool, inside: bool, prefix: int = 0) -> None:
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.causal, self.inside, self.prefix = causal, inside, prefix

    def forward(self, idx: Tensor, labels: Tensor | None = None) -> Tensor:
        mask = torch.ones(idx.shape[1], idx.shape[1]).tril() if self.causal else torch.ones(idx.shape[1], idx.shape[1])
        mask[: self.prefix, : self.prefix] = 1
        logits = (mask / mask.sum(1, keepdim=True)) @ self.table(idx) @ self.table.weight.T
        if labels is None or not self.inside:
            return logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("right", [True, False])
def test_a_model_that_sees_what_it_foretells(right: bool, inside: bool) -> None:
    model, call = Attending(causal=right, inside=inside), Call((TOKENS,), {"labels": TOKENS})
    length = 5 if inside else 6
    found = causal(Outputs(model, call, length), None, Batch(TOKENS[:, :length], TOKENS[:, :length]))
    assert found is not None
    assert (found["earlier"] == 0) == right
    assert min(found["later"], found["back"]) > 0


def test_a_prompt_may_be_read_in_both_directions() -> None:
    model, call = Attending(causal=True, inside=False, prefix=4), Call((TOKENS,), {})
    targets = TOKENS.clone()
    everywhere = causal(Outputs(model, call, 6), None, Batch(TOKENS, targets))
    targets[:, :4] = IGNORE
    answers = causal(Outputs(model, call, 6), None, Batch(TOKENS, targets))
    assert everywhere is not None
    assert answers is not None
    assert everywhere["earlier"] > 0
    assert answers["earlier"] == 0


def test_one_batch_again_and_again() -> None:
    batches = list(held.held(iter([[torch.zeros(2)], [torch.ones(2)], [torch.ones(2)]]), []))
    assert [float(batch[0].sum()) for batch in batches] == [0.0, 0.0, 0.0]
    batches[0][0] += 1
    assert float(batches[1][0].sum()) == 0.0, "what the loop changes is its own"


def test_loaders_and_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataLoader, "__iter__", DataLoader.__iter__)
    for name in (*held.DROPOUTS, "scaled_dot_product_attention"):
        monkeypatch.setattr(F, name, getattr(F, name))
    held.hold_loaders()
    held.hold_loaders()
    held.drop_nothing()
    loader = DataLoader(TensorDataset(torch.arange(6)), batch_size=2)
    assert [batch[0].tolist() for _ in range(2) for batch in loader] == [[0, 1]] * 6
    x = torch.ones(1000)
    assert torch.equal(nn.Dropout(0.5)(x), x)
    assert not torch.equal(dropout(x, 0.5), x), "a name that was imported before is not reached"
    q = torch.randn(1, 4, 8)
    assert torch.equal(F.scaled_dot_product_attention(q, q, q, dropout_p=0.9), F.scaled_dot_product_attention(q, q, q))


def test_no_decay() -> None:
    optimizer = torch.optim.AdamW([nn.Parameter(torch.ones(1))], weight_decay=0.1)
    held.without_decay([optimizer])
    assert optimizer.param_groups[0]["weight_decay"] == 0.0


def test_samples_are_kept_once() -> None:
    samples = Samples()
    samples.add([7, 9], Batch(TOKENS, TOKENS + 1))
    samples.add([9, 11], Batch(TOKENS.flip(0), TOKENS + 1))
    samples.add([1], Batch(TOKENS, TOKENS))  # ids that do not name each of them
    found = split(samples, "train", samples.ids, chunk=1)
    assert found["ids"] == [7, 9, 11]
    assert found["counts"] == [6, 6, 6]
    assert found["unigram"] > 2


class Told(list[tuple[str, dict[str, Any]]]):
    def __call__(self, what: str, **fields: Any) -> None:
        self.append((what, fields))


def steps(role: Role, shift: int, told: Told, *, evaluate: bool = False) -> Script:
    model = Attending(causal=True, inside=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    script = Script(role, model, [optimizer], told)
    for _ in range(3):
        if evaluate:
            with torch.no_grad():
                F.cross_entropy(model(TOKENS).flatten(0, 1), TOKENS.flatten())
        script.read([3, 5])
        script.called((TOKENS,), {})
        logits = model(TOKENS)
        script.returned(logits)
        F.cross_entropy(logits.flatten(0, 1), TOKENS.roll(-shift, 1).flatten()).backward()
        optimizer.step()
        fields = script.told()
        assert fields["cross_entropy"][1] == 12 or (role is Role.SINGLE and not fields)
        script.stepped()
        if role is Role.SINGLE:
            break
    script.close(by_content=False)
    return script


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_offsets_of_targets(shift: int) -> None:
    told = Told()
    steps(Role.SINGLE, shift, told)
    [(what, fields)] = told
    assert (what, fields["classes"], fields["targets"]) == ("heard", 12, 12)
    assert max(fields["offsets"], key=fields["offsets"].get) == str(shift)
    assert math.isfinite(fields["loss_sum"])


def test_what_the_rung_that_learns_tells() -> None:
    told = Told()
    steps(Role.LEARN, 1, told, evaluate=True)
    assert [what for what, _ in told] == [
        "validation",
        "heard",
        "causal",
        "activations",
        "validation",
        "validation",
        "split",
        "classes",
    ]
    assert dict(told)["causal"]["earlier"] == 0
    assert dict(told)["split"]["ids"] == [3, 5]
