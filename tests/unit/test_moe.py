"""The mixture of experts: its loss adds up, its routing is a matter of each token alone, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from dist_checks.matrix import ConfigError, parse
from dist_checks.plan import make
from dist_checks.recipes import Recipe, load
from dist_checks.recipes.moe import CHOSEN, NOWHERE, Experts, MoE, Router
from dist_checks.refusals import Facts


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def new(**options: Any) -> tuple[Recipe, nn.Module]:
    recipe = load("moe", {"width": 16, **options})
    torch.manual_seed(0)
    return recipe, recipe.model().double()


def gradients(recipe: Recipe, model: nn.Module, ids: list[int], targets: int) -> list[torch.Tensor]:
    model.zero_grad()
    batch = recipe.collate(ids)
    loss_sum, _ = recipe.loss(model(batch.inputs), batch)
    (loss_sum / targets).backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("balance", [0.0, 0.01, 1.0])
def test_the_gradient_of_a_batch_is_the_sum_over_its_samples(balance: float) -> None:
    recipe, model = new(balance=balance)
    ids = [3, 14, 15, 92]
    targets = recipe.collate(ids).count
    together = gradients(recipe, model, ids, targets)
    alone = [gradients(recipe, model, [i], targets) for i in ids]
    for name, total, *parts in zip(dict(model.named_parameters()), together, *alone, strict=True):
        torch.testing.assert_close(torch.stack(parts).sum(0), total, rtol=1e-12, atol=1e-15, msg=name)


def test_the_balance_term_is_weighed_by_targets() -> None:
    recipe, model = new(balance=0.5)
    batch = recipe.collate([3, 14])
    logits, balance = model(batch.inputs)
    with_term, targets = recipe.loss((logits, balance), batch)
    without, _ = recipe.loss((logits, torch.zeros_like(balance)), batch)
    expected = 0.5 * (balance * batch.counts).sum()
    assert targets == batch.count
    torch.testing.assert_close(with_term - without, expected, rtol=1e-9, atol=0)
    assert 0.9 < balance.min() < 1.5  # 1 where all experts are chosen alike


def test_padding_goes_nowhere() -> None:
    router = Router(16, 4)
    x = torch.randn(2, 5, 16)
    real = torch.tensor([[True] * 5, [True, True, False, False, False]])
    weights, chosen, balance = router(x, real)
    assert (chosen == NOWHERE).sum() == 3 * CHOSEN
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 5))
    alone = router(x[1:, :2], real[1:, :2])
    torch.testing.assert_close(balance[1:], alone[2])
    assert torch.equal(chosen[1:, :2], alone[1])
    y, _ = MoE(16, 4)(x, real)
    assert not y[~real].any()


def test_a_token_gets_what_its_experts_say() -> None:
    moe = MoE(8, 4).double()
    x, real = torch.randn(2, 3, 8, dtype=torch.float64), torch.ones(2, 3, dtype=torch.bool)
    y, _ = moe(x, real)
    weights, chosen, _ = moe.router(x, real)
    token, own, picks = x[1, 2], weights[1, 2], chosen[1, 2].tolist()
    one = Experts(8, 16, 1).double()
    expected = torch.zeros(8, dtype=torch.float64)
    for weight, expert in zip(own, picks, strict=True):
        one.up, one.down = (nn.Parameter(p[expert : expert + 1].detach()) for p in (moe.experts.up, moe.experts.down))
        expected += weight * one(token[None], torch.tensor([1]))[0]
    torch.testing.assert_close(y[1, 2], expected)


def test_experts_without_tokens_have_a_gradient_of_zero() -> None:
    experts = Experts(8, 16, 4)
    experts(torch.randn(3, 8), torch.tensor([0, 2, 0, 1])).sum().backward()
    assert experts.up.grad is not None
    assert [bool(gradient.any()) for gradient in experts.up.grad] == [False, True, False, True]


def test_experts_and_routers_are_named() -> None:
    recipe, model = new(layers=3)
    assert list(recipe.experts(model)) == ["blocks.1.moe.experts", "blocks.2.moe.experts"]
    assert list(recipe.routers(model)) == ["blocks.1.moe.router", "blocks.2.moe.router"]
    assert {name for name, _ in model.named_parameters()} >= {"blocks.0.mlp.up.weight", "blocks.2.moe.experts.down"}
    gpt = load("gpt")
    assert not gpt.experts(gpt.model())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": 1}, r"options.layers \(1\) must be at least 2: the first layer has no experts"),
        ({"experts": 2}, r"options.experts \(2\) must be more than the 2 that a token goes to"),
        ({"balance": -1}, r"options.balance \(-1\) must be at least 0"),
    ],
)
def test_what_is_wrong_with_the_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load("moe", options)


def refusal(axes: dict[str, Any], **facts: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        make(parse({"axes": axes}), Facts.from_json(facts), 8)
    return str(refused.value)


@pytest.mark.parametrize(
    ("recipe", "axis", "reason"),
    [
        ("gpt", "ep", "ep needs a recipe with experts; gpt has none"),
        ("moe", "cp", "cp needs a recipe whose loss is one over tokens; moe balances whole sequences"),
        (
            "moe",
            "compile",
            "compile needs shapes that do not depend on data; moe gives an expert as many tokens as have chosen it",
        ),
    ],
)
def test_what_a_recipe_refuses_is_skipped_by_the_plan(recipe: str, axis: str, reason: str) -> None:
    made = make(
        parse({"axes": {axis: True if axis == "compile" else 2}}),
        Facts.from_json({"lacking": load(recipe).lacking()}),
        8,
    )
    assert reason in {skip.reason for skip in made.skipped}
    assert {rung.setting.to_json().get(axis) for rung in made.rungs} == {None}


def test_a_degree_that_divides_nothing_is_refused_by_the_plan() -> None:
    assert refusal({"ep": 3}, divisors={"ep": {"experts": 4}}) == (
        "axes.ep[0]: ep degree (3) must divide the recipe's experts (4)"
    )
