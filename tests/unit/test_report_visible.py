"""Text from a run cannot steer what shows it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dist_checks.report import words
from dist_checks.report.visible import shorten, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("blocks.0.norm1.weight", "blocks.0.norm1.weight"),
        ("größer ≤ 1e-10 ✓", "größer ≤ 1e-10 ✓"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\x9b2Jb\x7f", "a\\x9b2Jb\\x7f"),
        ("two\nlines\r", "two\\x0alines\\x0d"),
        ("right\u202eleft\u2028", "right\\u202eleft\\u2028"),
        ("lone \ud800, no character \ufffe", "lone \\ud800, no character \\ufffe"),
        ("\U000e0041", "\\U000e0041"),
        (None, "None"),
    ],
)
def test_what_cannot_be_seen_is_written_as_an_escape(text: object, shown: str) -> None:
    assert visible(text) == shown


def test_a_message_keeps_its_lines_but_not_a_carriage_return_alone() -> None:
    assert visible("a\r\nb\tc\rd", lines=True) == "a\nb  c\\x0dd"


@given(st.text())
def test_what_is_shown_can_be_printed_and_encoded(text: str) -> None:
    shown = visible(text)
    assert shown.isprintable()
    shown.encode("utf-8")


def test_long_text_says_how_much_is_left_out() -> None:
    shown = visible("a" * 1000 + "z" * 1000, limit=90)
    assert shown.startswith("a" * 60 + "[... 1910 more characters ...]")
    assert shown.endswith("z" * 30)


def test_shortened_names_keep_both_ends() -> None:
    assert shorten("blocks.11.attention.qkv.weight", 18) == "blocks.1..v.weight"
    assert len(shorten("x" * 99, 16)) == 16
    assert shorten("short", 16) == "short"


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ([], ""),
        ([3], "rank 3"),
        ([1, 0], "ranks 0 and 1"),
        (range(8), "ranks 0 to 7"),
        ([0, 1, 2, 5, 7, 8], "ranks 0 to 2, 5, 7 and 8"),
        (range(0, 40, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 others"),
    ],
)
def test_ranks_in_words(numbers: list[int], said: str) -> None:
    assert words.ranks(numbers) == said


def test_numbers_in_words() -> None:
    assert [words.number(value) for value in (None, 0.0, 1e-10, 0.5, float("nan"))] == ["-", "0", "1e-10", "0.5", "nan"]
    assert [words.share(value) for value in (None, 0.0041, 3e-10)] == ["-", "0.41 %", "3e-10"]
    assert [words.duration(value) for value in (None, 1.94, 200.0, 3599.6)] == ["", "1.9 s", "3 min 20 s", "60 min 0 s"]
    assert words.setting({"tp": 2, "sp": True, "precision": "bf16"}) == "tp2+sp+bf16"
