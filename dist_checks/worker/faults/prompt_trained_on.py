"""The prompt is trained on like the answer."""

from __future__ import annotations

from torch import Tensor

from dist_checks.recipes import answers
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def ignored(targets: Tensor, prompt: int) -> Tensor:
        return targets

    answers.ignored = ignored


FAULT = Fault(
    id="prompt_trained_on",
    title="a prompt that is trained on",
    source="labels = input_ids.clone() of a prompt with its answer",
    axes=(),
    check="data_padding",
    leads_to={"prompt_counts": "ignore"},
    blamed="recipe",
    plant=plant,
    planted_in={
        "recipe": "answers",
        "axes": {},
        "single": {"learn": 2, "overfit": 0},
        "options": {"layers": 2, "width": 16, "samples": 150},
    },
)
