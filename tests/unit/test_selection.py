"""Expressions after -k mean what they mean in pytest."""

from __future__ import annotations

import pytest

from dist_checks.selection import choose

NAMES = ["single", "tp2", "tp2+sp", "dp_shard3+tp2", "accum5", "tp2@cold"]


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("tp2", {"tp2"}),
        ("tp", {"tp2", "tp2+sp", "dp_shard3+tp2", "tp2@cold"}),
        ("tp2+sp", {"tp2+sp"}),
        ("tp2 and not sp", {"tp2", "dp_shard3+tp2", "tp2@cold"}),
        ("sp or accum", {"tp2+sp", "accum5"}),
        ("(sp or accum) and not accum5", {"tp2+sp"}),
        ("not not single", {"single"}),
        ("pp", set()),
    ],
)
def test_choose(expression: str, chosen: set[str]) -> None:
    assert choose(expression, NAMES) == chosen


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("tp and", "expected a part of a rung's name at the end"),
        ("", "expected a part of a rung's name at the end"),
        ("and tp", "expected a part of a rung's name before 'and'"),
        ("(tp", "a closing parenthesis is missing"),
        ("tp )", r"unexpected '\)' in 'tp \)'"),
    ],
)
def test_what_is_no_expression(expression: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose(expression, NAMES)
