"""When a step jumps."""

from __future__ import annotations

from dist_checks.jumps import Usual

LOSSES = [0.002, 0.0021, 0.0019, 0.0022] * 5
NORMS = [0.006] * 20


def test_a_loss_that_has_come_close_to_zero_does_not_jump() -> None:
    assert Usual.of(LOSSES, NORMS).jumps(0.006, 0.3), "as far as the window knows"
    settled = Usual.of(LOSSES, NORMS, (1.4, 3.0))
    assert not settled.jumps(0.006, 0.29)
    assert settled.jumps(0.09, None)
    assert settled.jumps(0.002, 0.31)


def test_a_first_step_of_which_nothing_is_known() -> None:
    assert Usual.of(LOSSES, NORMS, (float("nan"), None)).jumps(0.006, None)
