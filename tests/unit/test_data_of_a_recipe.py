"""Data checks, from a recipe with a mistake in its data to the finding; quiet without the mistake."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_world import rung

from dist_checks.judging.checks.alone import ALONE
from dist_checks.judging.reading import RECORD, Digests, RankTrace, Trace
from dist_checks.judging.seen import Seen
from dist_checks.judging.triage import SYMPTOMS
from dist_checks.judging.verdict import Finding, Status
from dist_checks.judging.view import RungView
from dist_checks.looks.causal import documents
from dist_checks.looks.statistics import floor, split
from dist_checks.recipes.base import IGNORE, Batch
from dist_checks.recipes.gpt import GPTRecipe
from dist_checks.recipes.mlp import MLPRecipe
from dist_checks.rung import Role

CHECKS = dict(ALONE)
BEGIN, END, PROMPT = 1, 2, 3


class Points(MLPRecipe):
    """From two sources, of which one has a quarter of the samples."""

    mixture: Mapping[str, float] | None = {"lab": 0.75, "field": 0.25}

    def __init__(self, wrong: str = "") -> None:
        super().__init__(samples=400)
        self.wrong = wrong

    def source(self, sample: int) -> str:
        every = 2 if self.wrong == "mixture" else 4
        return "lab" if sample % every else "field"

    def collate(self, ids: Sequence[int]) -> Batch:
        batch = super().collate(ids)
        if self.wrong == "leak":  # the label was left among the features
            batch.inputs[:, 5] = batch.targets.float() / 9
        return batch


class Texts(GPTRecipe):
    """Phrases between two tokens, the first three of which are a prompt."""

    begin: int | None = BEGIN
    end: int | None = END

    def __init__(self, wrong: str = "") -> None:
        super().__init__(samples=123)
        self.wrong = wrong

    def prompt(self, sample: int) -> int:
        return PROMPT

    def collate(self, ids: Sequence[int]) -> Batch:
        inputs = torch.zeros(len(ids), self.length, dtype=torch.int64)
        targets = torch.full_like(inputs, IGNORE)
        start = [BEGIN, BEGIN] if self.wrong == "twice" else [BEGIN]
        stop = [] if self.wrong == "endless" else [END]
        for row, index in enumerate(ids):
            text = torch.tensor([*start, *self.phrases[index][: self.length - 3], *stop])
            inputs[row, : len(text)] = text
            targets[row, : len(text) - 1] = text[1:]
        if self.wrong != "prompt":
            targets[:, :PROMPT] = IGNORE
        return Batch(inputs, targets)


def asked(recipe: Points | Texts, name: str) -> Finding:
    held = range(recipe.samples, recipe.samples + recipe.held_out)
    seen = [split(recipe, "train", range(recipe.samples)), split(recipe, "validation", held)]
    rank = RankTrace(
        rank=0,
        header={"world_size": 1},
        entries={},
        steps={0: {"loss_sum": math.log(10), "targets": 1, "epoch": 0, "ids": [0]}},
        evidence={},
        digests=Digests.of(Path("none"), np.zeros(0, RECORD)),
        ended=True,
        problems=(),
        observed=tuple({"what": "split", **each} for each in seen),
    )
    own = Seen(rung(role=Role.LEARN, id="learn", steps=1), Trace(Path("none"), 1, (rank,)))
    facts: dict[str, Any] = {"classes": recipe.classes, "mixture": recipe.mixture, "next_token": recipe.next_token}
    [found] = CHECKS[name](RungView(own=own, exit=None, recipe=facts))
    return found


@pytest.mark.parametrize(
    ("kind", "wrong", "check", "symptom", "suspect"),
    [
        (Points, "mixture", "data_mixture", "mixture", "weights"),
        (Points, "leak", "data_inputs", "label_leak", "column"),
        (Texts, "twice", "data_special_tokens", "special_tokens", "twice"),
        (Texts, "endless", "data_special_tokens", "special_tokens", "missing"),
        (Texts, "prompt", "data_padding", "prompt_counts", "ignore"),
    ],
)
def test_a_mistake_in_the_data(kind: type[Points | Texts], wrong: str, check: str, symptom: str, suspect: str) -> None:
    right = asked(kind(), check)
    assert right.status is Status.PASS, right.message
    found = asked(kind(wrong), check)
    assert (found.status, found.symptom) == (Status.FAIL, symptom), found.message
    assert found.suspects[0] == SYMPTOMS[symptom].suspects[suspect]


class Cut(Texts):
    """Documents by their place: the first ``length`` tokens are one, and the others another."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.first = length

    def documents(self, batch: Batch) -> torch.Tensor:
        return (torch.arange(batch.inputs.shape[1]) >= self.first).long().expand_as(batch.inputs)


def test_a_document_is_moved_only_where_it_stays_one() -> None:
    for recipe, moves in ((Cut(16), True), (Cut(20), False)):
        found = documents(recipe.model(), recipe, recipe.collate([0, 1]))
        assert found is not None
        assert (found["moved"] is not None) is moves
        assert found["other"] > 0, "it has no mask of documents"
    assert documents(Texts().model(), Texts(), Texts().collate([0])) is None


def test_the_floor_of_a_batch() -> None:
    """Two samples that differ in their last token only: what comes before tells a causal model nothing."""
    batch = Batch(torch.tensor([[5, 6, 7], [5, 6, 8]]), torch.tensor([[0, 0, 0], [1, 0, 1]]))
    assert floor(batch) == pytest.approx(2 * math.log(2) / 6)
    assert floor(batch, causal=False) == 0
    points = Batch(torch.tensor([[1.0], [1.0], [2.0]]), torch.tensor([0, 1, 1]))
    assert floor(points, causal=False) == pytest.approx(2 * math.log(2) / 3)
