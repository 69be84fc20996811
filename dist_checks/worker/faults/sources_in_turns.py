"""Sources take turns, whatever their shares are said to be."""

from __future__ import annotations

from dist_checks.recipes import answers
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def sources(count: int) -> list[str]:
        return [list(answers.SHARES)[sample % len(answers.SHARES)] for sample in range(count)]

    answers.sources = sources


FAULT = Fault(
    id="sources_in_turns",
    title="sources mixed otherwise than declared",
    source="a loader that takes one sample from each source in turn",
    axes=(),
    check="data_mixture",
    leads_to={"mixture": "weights"},
    blamed="recipe",
    plant=plant,
    planted_in={
        "recipe": "answers",
        "axes": {},
        "single": {"learn": 2, "overfit": 0},
        "options": {"layers": 2, "width": 16, "samples": 150},
    },
)
