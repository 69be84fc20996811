"""What the check ``resume`` says of how far a run is."""

from __future__ import annotations

from typing import Any

import pytest

from dist_checks.judging.checks.resume import _progress

SAVED: dict[str, Any] = {"step": 3, "epoch": 1, "batch": 1, "optimizer_steps": [3], "loss_scale": 64.0}


@pytest.mark.parametrize(
    ("loaded", "said"),
    [
        ({"step": 0}, "the step counter of rank 2 is 0, saved was 3"),
        (
            {"epoch": 0, "batch": 0},
            "the loader of rank 2 starts again at sample 0, saved was batch 1 of epoch 1",
        ),
        (
            {"epoch": 0},
            "the loader of rank 2 goes on with batch 1 of epoch 0, saved was batch 1 of epoch 1",
        ),
        ({"optimizer_steps": []}, "the optimizer of rank 2 has counted no steps, saved were 3"),
        ({"loss_scale": 65536.0}, "the loss scale of rank 2 is 65536.0, saved was 64.0"),
    ],
)
def test_how_far_a_run_is(loaded: dict[str, Any], said: str) -> None:
    assert list(_progress(SAVED, {0: SAVED, 2: {**SAVED, **loaded}})) == [(said, 2)]


def test_nothing_is_wrong() -> None:
    assert list(_progress(SAVED, {0: SAVED, 1: dict(SAVED)})) == []
