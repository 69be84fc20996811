"""One line per rung in a log, a live table on a terminal."""

from __future__ import annotations

import io
import re

import pytest

from dist_checks.report.progress import LiveProgress, PlainProgress, Progress
from dist_checks.report.terminal import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def climb(shown: Progress) -> None:
    with shown as p:
        p.note("starting\x1b[2J")
        p.started("tp2", 2)
        p.started("accum5", 1)
        p.ended("tp2", "done", 1.94)
        p.ended("accum5", "fail", 200)


def test_one_line_per_rung_in_a_log() -> None:
    stream = io.StringIO()
    climb(progress(12, stream))
    assert stream.getvalue().splitlines() == [
        "starting\\x1b[2J",
        "[ 1/12] tp2                                   2 ranks  done          1.9 s",
        "[ 2/12] accum5                                 1 rank  fail          3 min 20 s",
    ]


def test_a_terminal_shows_the_same_lines_and_a_table_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    climb(progress(12, stream))
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert "[ 1/12] tp2                                   2 ranks  done          1.9 s" in shown
    assert "0 of 12 rungs ended, 2 running, 10 waiting" in shown
    assert "\x1b[1;31m" in stream.getvalue()
    assert "\x1b[2J" not in stream.getvalue()


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    climb(progress(2, stream))
    assert not re.search(r"\x1b\[[0-9;]*m", stream.getvalue())


def test_which_kind_suits_which_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(progress(1, Terminal()), LiveProgress)
    assert isinstance(progress(1, io.StringIO()), PlainProgress)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(progress(1, Terminal()), PlainProgress)


def test_a_run_that_was_cut_short_says_what_had_not_ended() -> None:
    stream = io.StringIO()
    with progress(2, stream) as p:
        p.started("tp2", 2)
    assert stream.getvalue() == "not ended: tp2\n"


def test_more_rungs_than_planned_are_counted() -> None:
    stream = io.StringIO()
    with progress(1, stream) as p:
        for rung in ("tp2", "tp2@again"):
            p.started(rung, 2)
            p.ended(rung, "pass", 1)
    assert "[2/2] tp2@again" in stream.getvalue()
