"""What is seen of losses: that they add up, and what a script prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from judging_cases import ACCUM, DP, judged, of, sees
from tampering import Tamper

from dist_checks.judging.verdict import Status


def test_loss_counts_targets(tmp_path: Path) -> None:
    class Fewer(Tamper):
        def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
            return event | {"targets": event["targets"] - (rank == 1)}

    assert "targets at step 0" in sees(tmp_path, "loss", DP, Fewer()).message


def test_loss_adds_up_over_data_ranks(tmp_path: Path) -> None:
    class Off(Tamper):
        def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
            return event | {"loss_sum": event["loss_sum"] * (1 + 1e-6 * (rank == 1 and step == 3))}

    assert sees(tmp_path, "loss", DP, Off()).step == 3


def test_a_printed_loss_that_is_wrong_on_all_ranks(tmp_path: Path) -> None:
    class Prints(Tamper):
        def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
            return event | {"printed_loss": event["printed_loss"] / 3}

    found = sees(tmp_path, "loss", DP, Prints())
    assert found.scale == pytest.approx(1 / 3)


def test_a_printed_loss_of_one_micro_batch_is_innocent(tmp_path: Path) -> None:
    """huggingface/pytorch-image-models#2339; it is a mistake where no micro-batch has that loss."""

    class Prints(Tamper):
        losses: tuple[float, ...] = (3.0, 4.0)

        def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
            return event | {"printed_loss": 4.0, "micro_losses": list(self.losses)}

    judgement, id = judged(tmp_path / "one", ACCUM, Prints())
    (found,) = of(judgement, id, "loss")
    assert found.status is Status.PASS
    assert "is not the loss of the batch" in found.message

    class Wrong(Prints):
        losses = (3.0, 5.0)

    assert sees(tmp_path / "none", "loss", ACCUM, Wrong()).observed == 4.0


def test_a_printed_loss_of_the_rank_itself_is_innocent(tmp_path: Path) -> None:
    """aigc-apps/VideoX-Fun#222."""

    class Prints(Tamper):
        def event(self, step: int, rank: int, event: dict[str, Any]) -> dict[str, Any]:
            return event | {"printed_loss": event["loss_sum"] / event["targets"]}

    judgement, id = judged(tmp_path, DP, Prints())
    (found,) = of(judgement, id, "loss")
    assert found.status is Status.PASS
    assert "is not the loss of the batch" in found.message
