"""Texts begin with their token twice: the tokenizer has added it, and the recipe again."""

from __future__ import annotations

from dist_checks.recipes import answers
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    right = answers.framed

    def framed(text: bytes) -> list[int]:
        return [answers.BEGIN, *right(text)]

    answers.framed = framed


FAULT = Fault(
    id="begun_twice",
    title="a token that begins each text, twice",
    source="tokenizer(bos_token + text), where the tokenizer adds it as well",
    axes=(),
    check="data_special_tokens",
    leads_to={"special_tokens": "twice"},
    blamed="recipe",
    plant=plant,
    planted_in={
        "recipe": "answers",
        "axes": {},
        "single": {"learn": 2, "overfit": 0},
        "options": {"layers": 2, "width": 16, "samples": 150},
    },
)
