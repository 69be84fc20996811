"""The checkpoint has other names than the model, and what does not fit is passed over."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from dist_checks.recipes import answers
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def load(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
        model.load_state_dict({f"module.{name}": value for name, value in weights.items()}, strict=False)

    answers.load = load


FAULT = Fault(
    id="never_loaded",
    title="weights that were never loaded",
    source="load_state_dict(strict=False) of a checkpoint that DataParallel has saved",
    axes=(),
    check="step_zero",
    leads_to={"not_loaded": "load"},
    blamed="recipe",
    plant=plant,
    planted_in={
        "recipe": "answers",
        "axes": {},
        "single": {"learn": 2, "overfit": 0},
        "options": {"layers": 2, "width": 16, "samples": 150, "trained": True},
    },
)
