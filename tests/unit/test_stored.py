"""A run's folder belongs to one harness, and what is damaged in it is named."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_world import make_run, rung

from dist_checks import session, stored
from dist_checks.judging.judge import report
from dist_checks.matrix import ConfigError
from dist_checks.run_folder import new_folder
from dist_checks.rung import Rung
from dist_checks.trace import NotWritten, checksum, digests_path, events_path, writing


def test_two_harnesses_do_not_meet_in_one_folder(tmp_path: Path) -> None:
    with stored.alone(tmp_path, new=True):
        code = "import sys; from pathlib import Path; from dist_checks.stored import alone\n"
        code += "with alone(Path(sys.argv[1]), new=True): print('in')"
        other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
        assert "another dist-checks is running in this folder" in other.stderr
        with (
            pytest.raises(ConfigError, match="another dist-checks is running"),
            stored.alone(tmp_path, new=False),
        ):
            pass
    with stored.alone(tmp_path, new=True):
        pass
    (tmp_path / "rungs").mkdir()
    with pytest.raises(ConfigError, match="is not empty"), stored.alone(tmp_path, new=True):
        pass


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "run", [rung(steps=2), rung({"tp": 2}, steps=2)])


def tp2(run: Path) -> Rung:
    return Rung.from_json(json.loads((run / "plan.json").read_text())["rungs"][1])


def test_what_has_ended(run: Path) -> None:
    assert stored.is_ended(run, tp2(run))
    path = run / "rungs" / "tp2" / "exit.json"
    for state, ended in (("failed", True), ("timed_out", True), ("lost", False), ("cancelled", False)):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"state": state}))
        assert stored.is_ended(run, tp2(run)) is ended
    for text in ("", "{", "[]", '{"state": "done", "checksum": 1}'):
        path.write_text(text)
        assert not stored.is_ended(run, tp2(run))
    path.unlink()
    assert not stored.is_ended(run, tp2(run))


def test_a_rung_whose_trace_is_cut_has_not_ended(run: Path) -> None:
    path = digests_path(run / "rungs" / "tp2", 1)
    path.write_bytes(path.read_bytes()[:-8])
    assert not stored.is_ended(run, tp2(run))


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at % len(data)] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("which", [events_path, digests_path])
def test_no_flipped_bit_is_a_pass(run: Path, which: Any) -> None:
    path = which(run / "rungs" / "tp2", 1)
    whole = path.read_bytes()
    for number in range(12):
        flip(path, number * len(whole) // 12 + 41 * number, number % 8)
        found = report(run)
        assert found["status"] != "pass", number
        assert path.name in json.dumps(found["findings"]) or "schema" in json.dumps(found["findings"]), number
        assert "the check broke" not in json.dumps(found["findings"])
        path.write_bytes(whole)


def sign(path: Path) -> None:
    values = json.loads(path.read_text())
    path.write_text(json.dumps(values | {"checksum": checksum(values)}, indent=1))


def test_a_plan_or_an_exit_that_was_changed_is_noticed(run: Path) -> None:
    plan, exit = run / "plan.json", run / "rungs" / "tp2" / "exit.json"
    for path in (plan, exit):
        sign(path)
    assert report(run)["status"] == "pass"
    exit.write_text(exit.read_text().replace('"seconds": 1.0', '"seconds": 1.5'))
    assert report(run)["status"] == "inconclusive"
    plan.write_text(plan.read_text().replace('"steps": 2', '"steps": 1'))
    with pytest.raises(ConfigError, match=r"plan.json is damaged: its checksum is wrong"):
        session.judge(run)


def test_a_report_that_cannot_be_written_is_one_message(run: Path) -> None:
    (run / "report.json" / "in the way").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"report.json: cannot be written: Is a directory"):
        session.judge(run)
    assert not [path for path in run.iterdir() if path.name.startswith(".report")]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--out: .* cannot be written: Not a directory"):
        new_folder("ladder", tmp_path / "file" / "run")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"schema": 0}', "has schema 0; this version reads schema 1: judge the run again"),
        ('{"schema": 1, "rungs": [{}]}', "this is no report: it has no rungs"),
        ("[]", "expected a JSON object"),
        ("[" * 99_999, "nested too deeply"),
    ],
)
def test_a_report_of_another_version(run: Path, text: str, words: str) -> None:
    (run / "report.json").write_text(text)
    with pytest.raises(ConfigError, match=words):
        session.pages(run)
    assert session.judge(run)["status"] == "pass"
    assert session.pages(run)["status"] == "pass"


def test_harnesses_of_the_same_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda *_: "now")
    made = [new_folder("ladder", None) for _ in range(3)]
    assert [folder.name for folder in made] == ["now_ladder", "now_ladder~2", "now_ladder~3"]


def test_a_full_disk_names_the_file_and_the_rank(tmp_path: Path) -> None:
    path = events_path(tmp_path, 3)
    message = r"rank-00003.jsonl of rank 3 cannot be written: No space left on device"
    with pytest.raises(NotWritten, match=message), writing(path, 3):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
