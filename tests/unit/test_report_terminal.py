"""What is printed in the end: the same with and without a terminal, the sentence last."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from report_samples import NAMES, malformed, sample

from dist_checks.report import terminal
from dist_checks.report.read import read

LINKS = {"html": Path("runs/latest/report.html"), "junit": Path("runs/latest/junit.xml")}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(name: str, stream: io.StringIO) -> str:
    terminal.summary(sample(name), stream, links=LINKS)
    return stream.getvalue()


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "40")


@pytest.mark.parametrize("name", NAMES)
def test_the_last_line_is_the_sentence(name: str) -> None:
    last = printed(name, io.StringIO()).splitlines()[-1]
    assert last == sample(name)["sentence"].replace("\x1b", "\\x1b")


@pytest.mark.parametrize("name", NAMES)
def test_no_control_characters_without_a_terminal(name: str) -> None:
    text = printed(name, io.StringIO())
    assert not [char for char in text if char != "\n" and not char.isprintable()]


@pytest.mark.parametrize("name", NAMES)
def test_a_terminal_adds_nothing_but_colours(name: str) -> None:
    coloured = printed(name, Terminal())
    assert "\x1b[1;31m" in coloured or name == "pass"
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == printed(name, io.StringIO())


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colours_where_none_are_wanted(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    assert "\x1b" not in printed("fail", Terminal())


def test_findings_in_the_form_that_users_know() -> None:
    text = printed("fail", io.StringIO())
    assert (
        "     axis  accum x dp_replicate, only together (dp_replicate3, accum5 pass)    "
        "try  dist-checks run matrix.toml -k 'dp_replicate3+accum5' --steps 1\n"
        "\n"
        "also not passing: tp2 (replicas), dp_replicate3+accum5 (gradients), "
    ) in text
    assert "axis  accum x dp_replicate, only together (dp_replicate3, accum5 pass)" in text
    assert "(residual 0.116 -> 4.4e-15 when undone)" in text
    assert "tp2                       2      1.8  FAIL          .....F...F..F...  replicas" in text


def test_what_would_have_been_seen_and_where_the_pages_are() -> None:
    text = printed("pass", io.StringIO())
    assert "would see  in fp64 any scale error above 3.1e-10 of half of the gradients, above 3.1e-10 of any" in text
    assert "html       runs/latest/report.html\n" in text


def test_nothing_can_pose_as_the_last_line() -> None:
    text = printed("hostile", io.StringIO())
    assert "\nPASS everything" not in text


def test_many_rungs_and_findings_stay_short() -> None:
    report = sample("fail")
    report["rungs"] = [{"id": f"r{i}", "status": "pass", "checks": {"loss": "pass"}} for i in range(900)]
    report["findings"] = [
        {"rung": f"r{i}", "check": "loss", "status": "fail", "message": "x\n" * 90} for i in range(900)
    ]
    report["broken"] = []
    stream = io.StringIO()
    terminal.summary(report, stream, links={})
    lines = stream.getvalue().splitlines()
    assert len(lines) < 200
    assert "and 888 more checks" in lines


def test_a_stream_that_cannot_encode_still_gets_the_text() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    terminal.summary({"status": "fail", "sentence": "FAIL größer"}, stream, links={})
    assert raw.getvalue() == b"FAIL gr\\xf6\\xdfer\n"


def test_whatever_is_missing_there_is_a_summary() -> None:
    for report in malformed():
        terminal.render(report, {})


def test_one_device_has_a_table_of_its_own_and_what_all_skip_no_column() -> None:
    rungs = [
        {"id": "single", "role": "single", "checks": {"step_zero": "pass", "launch": "pass", "curve": "skip"}},
        {"id": "learn", "role": "learn", "checks": {"launch": "pass", "causal": "fail", "useful": "skip"}},
        {"id": "tp2", "role": "rung", "checks": {"launch": "pass", "loss": "pass", "curve": "skip"}},
    ]
    alone, ladder = read({"rungs": rungs}).tables
    assert [rung.id for rung in alone.rungs] == ["single", "learn"]
    assert (alone.checks, alone.skipped) == (("step_zero", "launch", "causal"), ("useful",))
    assert [rung.id for rung in ladder.rungs] == ["single", "tp2"]
    assert (ladder.checks, ladder.skipped) == (("launch", "loss"), ("curve",))
    (only,) = read({"rungs": rungs[:2]}).tables
    assert (only.title, only.checks) == ("One device", ("step_zero", "launch", "causal"))
    text = io.StringIO()
    terminal.summary({"rungs": rungs}, text, links={})
    head, *lines = text.getvalue().splitlines()
    assert head.startswith("one device")
    assert "learn" in lines[1]
    assert lines[1].endswith(".F  causal")
    assert lines[3] == "skipped by all: useful"
