"""A batch as a page: targets under their tokens, or what a whole sample is labelled with."""

from __future__ import annotations

from dist_checks.report.batch import lines


def test_targets_of_tokens_stand_under_them() -> None:
    row = {"inputs": ["a", "b", "c", "<pad>"], "targets": ["b", "c", None, None]}
    assert lines(row) == ["  inputs   a b c", "  targets  b c ·", "  and 1 of padding, ignored"]


def test_targets_of_a_whole_sample_are_listed() -> None:
    row = {"inputs": ["a", "b", "<pad>"], "targets": ["comma", "no h"]}
    assert lines(row) == ["  inputs   a b", "  targets  comma, no_h", "  and 1 of padding"]
