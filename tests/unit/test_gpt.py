"""The built-in recipe: its text, its model, and that its loss adds up over samples."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from dist_checks.recipes import IGNORE, Batch, Recipe, TrainSettings, load
from dist_checks.recipes.gpt import rotate, rotation
from dist_checks.recipes.text import SHORTEST, phrases


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors are tiny: more threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def new(**options: object) -> tuple[Recipe, nn.Module]:
    recipe = load("gpt", options)
    torch.manual_seed(0)
    return recipe, recipe.model()


def gradients(recipe: Recipe, model: nn.Module, batch: Batch, targets: int) -> list[torch.Tensor]:
    model.zero_grad()
    loss_sum, _ = recipe.loss(model(batch.inputs), batch)
    (loss_sum / targets).backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def test_phrases_are_english_distinct_and_of_many_lengths() -> None:
    found = phrases(150, 33)
    assert found[:3] == [b"Assert statements", b"are a convenient way", b"to insert debugging assertions in"]
    assert len(set(found)) == 150
    lengths = [len(phrase) for phrase in found]
    assert (min(lengths), max(lengths)) == (SHORTEST, 33)
    assert len(set(lengths)) > 15


def test_more_samples_than_text() -> None:
    with pytest.raises(ValueError, match=r"options.samples \(10000000\) must be at most \d+: the built-in text"):
        load("gpt", {"samples": 10_000_000})


def test_targets_are_the_next_byte() -> None:
    recipe, _ = new()
    batch = recipe.collate([0, 2])
    assert batch.inputs.shape == batch.targets.shape == (2, 32)
    assert recipe.decode(batch.inputs[0].tolist()) == "Assert statement"
    assert recipe.decode(batch.targets[0].tolist()) == "ssert statements"
    assert batch.targets[0].tolist()[16:] == [IGNORE] * 16
    assert torch.equal(batch.inputs[1, 1:], batch.targets[1, :-1])
    assert batch.count == 16 + 32


def test_names_of_parameters_and_blocks() -> None:
    recipe, model = new()
    names = dict(model.named_parameters())
    for name in (
        "embedding.weight",
        "blocks.0.norm1.weight",
        "blocks.0.attention.q.weight",
        "blocks.3.mlp.down.bias",
        "norm.bias",
    ):
        assert name in names
    assert "head.weight" not in names  # tied: listed once
    assert model.head.weight is model.embedding.weight
    assert "head.weight" in dict(new(tied=False)[1].named_parameters())
    assert list(recipe.blocks(model)) == ["blocks.0", "blocks.1", "blocks.2", "blocks.3"]


def test_an_untrained_model_knows_nothing() -> None:
    recipe, model = new()
    batch = recipe.collate(range(150))
    loss_sum, targets = recipe.loss(model(batch.inputs), batch)
    assert targets == batch.count
    assert abs(loss_sum.item() / targets - math.log(256)) < 0.1


def test_the_seed_decides_the_weights() -> None:
    (_, one), (_, same) = new(), new()
    torch.manual_seed(1)
    other = load("gpt").model()
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.embedding.weight, other.embedding.weight)


def test_the_gradient_of_a_batch_is_the_sum_over_its_samples() -> None:
    recipe, model = new()
    model.double()
    ids = [3, 14, 15, 92]
    whole = recipe.collate(ids)
    together = gradients(recipe, model, whole, whole.count)
    alone = [gradients(recipe, model, recipe.collate([i]), whole.count) for i in ids]
    for name, total, *parts in zip(dict(model.named_parameters()), together, *alone, strict=True):
        torch.testing.assert_close(torch.stack(parts).sum(0), total, rtol=1e-12, atol=1e-15, msg=name)


def test_nobody_sees_padding_or_the_future() -> None:
    recipe, model = new()
    batch = recipe.collate([0])
    changed = batch.inputs.clone()
    changed[:, 16:] = 7
    before, after = model(batch.inputs), model(changed)
    assert torch.equal(before[:, :16], after[:, :16])
    assert not torch.equal(before[:, 16:], after[:, 16:])


def test_rotary_embedding_depends_on_distances_only() -> None:
    cos, sin = (table.double() for table in rotation(32, 8))
    q, k = torch.randn(2, 8, dtype=torch.float64)
    every = torch.stack([q] * 32), torch.stack([k] * 32)
    scores = rotate(every[0], cos, sin) @ rotate(every[1], cos, sin).T
    torch.testing.assert_close(scores[5, 2], scores[25, 22], rtol=1e-6, atol=1e-6)
    assert not torch.isclose(scores[5, 2], scores[5, 4], rtol=1e-3)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_it_learns(optimizer: str) -> None:
    recipe, model = new()
    rate = 3e-3 if optimizer == "adamw" else 0.1
    train = TrainSettings(optimizer=optimizer, learning_rate=rate)
    stepper = recipe.optimizer(model, train)
    losses = []
    for step in range(20):
        batch = recipe.collate(range(31 * (step % 4), 31 * (step % 4) + 31))
        loss_sum, targets = recipe.loss(model(batch.inputs), batch)
        stepper.zero_grad()
        (loss_sum / targets).backward()
        stepper.step()
        losses.append(loss_sum.item() / targets)
    assert losses[-1] < losses[0] - 1.5


def test_norms_and_biases_do_not_decay() -> None:
    recipe, model = new(tied=False)
    matrices, rest = recipe.optimizer(model, TrainSettings()).param_groups
    assert (matrices["weight_decay"], rest["weight_decay"]) == (0.1, 0.0)
    assert len(matrices["params"]) == 2 + 4 * 6
    assert len(rest["params"]) == 2 + 4 * (2 * 2 + 6)


def test_dropout_is_off_unless_asked_for() -> None:
    recipe, model = new()
    inputs = recipe.collate([0]).inputs
    assert torch.equal(model(inputs), model(inputs))
    _, noisy = new(dropout=0.1)
    assert not torch.equal(noisy(inputs), noisy(inputs))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gtp", {}, r"recipe takes a built-in name \(gpt, moe.*\) or 'package.module:Class', not 'gtp'"),
        ("no_such_package.train:Recipe", {}, "recipe 'no_such_package.train:Recipe' cannot be imported: No module"),
        ("math:Recipe", {}, "recipe 'math:Recipe' cannot be imported: module 'math' has no attribute"),
        ("math:sqrt", {}, "recipe 'math:sqrt' must be a class, not <built-in function sqrt>"),
        (
            "fractions:Fraction",
            {},
            "recipe 'fractions:Fraction': a recipe needs the methods model, collate, loss; Fraction has no model",
        ),
        (
            "gpt",
            {"depth": 3},
            r"options \{'depth': 3\} do not fit recipe 'gpt': .* unexpected keyword argument 'depth'",
        ),
        ("gpt", {"heads": 3}, r"twice options.heads \(3\) must divide options.width \(32\)"),
        ("gpt", {"dropout": 1}, r"options.dropout \(1\) must be at least 0 and below 1"),
        ("gpt", {"samples": 0}, "options.samples, layers and heads must be at least 1"),
    ],
)
def test_what_is_wrong_with_a_recipe(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(name, options)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"lr": 1}, "train.lr is not known; it must be one of batch, clip, learning_rate"),
        ({"optimizer": "adam"}, "train.optimizer takes one of adamw, sgd, not 'adam'"),
        ({"batch": 0}, r"train.batch \(0\) must be at least 1"),
        ({"learning_rate": float("nan")}, r"train.learning_rate \(nan\) must be above 0"),
        ({"clip": 0.0}, r"train.clip \(0.0\) must be above 0"),
    ],
)
def test_what_is_wrong_with_the_train_settings(train: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrainSettings.from_json(train)
