"""Two implementations with the same weights: the first module that differs, and what they are called in each."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dist_checks.axes import Setting
from dist_checks.judging.modules import first_difference
from dist_checks.judging.triage import SYMPTOMS
from dist_checks.judging.verdict import Status
from dist_checks.recipes import gpt
from dist_checks.recipes.gpt import GPT, GPTRecipe
from dist_checks.rung import Role, Rung
from dist_checks.worker import faults
from dist_checks.worker.alone.comparing import compare

TOKENS = torch.arange(40).view(2, 20)
SUSPECTS = SYMPTOMS["not_like_reference"].suspects


def model() -> GPT:
    torch.manual_seed(0)
    return GPTRecipe(layers=2, width=16, heads=2).model()


class Renamed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = model()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.body(tokens)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("fault", "place", "suspect"),
    [
        ("norm_epsilon_times_thousand", "blocks.0.norm1", "epsilon"),
        ("rotary_base_of_another_model", "blocks.0.attention.o", "rotary"),
        ("causal_mask_missing", "blocks.0.attention.o", "rotary"),
    ],
)
def test_the_first_module_that_differs(monkeypatch: pytest.MonkeyPatch, fault: str, place: str, suspect: str) -> None:
    reference = model()
    for owner, name in ((GPT, "__init__"), (gpt, "rotation"), (gpt, "causal")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # put back afterwards
    faults.plant(fault, Rung(id="", role=Role.SINGLE, setting=Setting(), precision="fp32", seed=0, steps=1))
    found = first_difference(compare(reference, model(), (TOKENS,), {}))
    assert (found.status, found.tensor) == (Status.FAIL, place), found.message
    assert found.suspects[0] == SUSPECTS[suspect]


def test_the_same_model_is_equal_whatever_its_initial_weights() -> None:
    torch.manual_seed(1)
    other = GPTRecipe(layers=2, width=16, heads=2).model()
    found = first_difference(compare(model(), other, (TOKENS,), {}))
    assert found.status is Status.PASS, found.message
    assert found.message.startswith("29 modules and 35 gradients are equal")


def test_by_other_names_it_needs_a_map() -> None:
    seen = compare(model(), Renamed(), (TOKENS,), {})
    assert first_difference(seen).status is Status.INCONCLUSIVE
    assert "give a map" in first_difference(seen).message
    mapped = first_difference(compare(model(), Renamed(), (TOKENS,), {"body": ""}))
    assert mapped.status is Status.PASS, mapped.message
