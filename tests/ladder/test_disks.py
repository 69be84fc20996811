"""A disk that is full or cannot be written: the file and the rank are named, and nothing passes for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ladders import Ladder
from mounts import mounted

from dist_checks import resuming, session
from dist_checks.judging.verdict import ExitCode
from dist_checks.matrix import ConfigError
from dist_checks.progress import Silent

AXES = {"dp_replicate": 3}
FEW = {"steps": 3, "axes": AXES, "options": {"layers": 1}, "launch": {"cold_twin": False, "deadline": 60.0}}


@pytest.fixture(autouse=True)
def recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))


class Notes(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    @contextmanager
    def show(self, rungs: int) -> Iterator[Notes]:
        yield self


@pytest.mark.parametrize("how", ["full", "read-only", "always full"])
def test_a_rank_that_cannot_write_blames_no_axis(ladder: Ladder, tmp_path: Path, how: str) -> None:
    place = "/dev/full"
    if how == "always full":
        outcome = ladder(AXES, recipe="ending_recipe:Elsewhere", options={"layers": 1, "place": place})
    else:
        with mounted(tmp_path / "disk", "16k", read_only=how == "read-only") as disk:
            options = {"layers": 1, "place": str(disk / "digests")}
            outcome = ladder(AXES, recipe="ending_recipe:Elsewhere", options=options)
    assert outcome.exit_code() is ExitCode.INCONCLUSIVE
    assert not outcome.report["broken"]
    [found] = [f for f in outcome.report["findings"] if (f["check"], f["rung"]) == ("completes", "dp_replicate3")]
    why = "Read-only file system" if how == "read-only" else "No space left on device"
    assert found["message"].startswith(f"rank 1 could not write: rank-00001.digests of rank 1 cannot be written: {why}")
    assert found["ranks"] == [1]


def test_the_disk_of_a_run_gets_full(tmp_path: Path, launcher: Any) -> None:
    """Once there is room again, the folder can be judged, and the run goes on."""
    seen = Notes()
    matrix = {**FEW, "recipe": "ending_recipe:FillsItsDisk"}
    with mounted(tmp_path / "disk", "4m") as disk:
        with pytest.raises(ConfigError, match=r"report.json: cannot be written: No space left on device"):
            session.run(matrix, out=disk / "run", launcher=launcher, show=seen.show)
        [note] = seen.notes
        assert note.startswith("stopped, judging what had finished: ")
        assert "rungs/dp_replicate3/exit.json: No space left on device; dp_replicate3: rank " in note, note
        assert " of 3 failed first, " in note
        assert " cannot be written: No space left on device" in note
        (disk / "filler").write_bytes(b"")
        report = session.judge(disk / "run")
        assert report["status"] == "inconclusive"
        statuses = {rung["id"]: rung["status"] for rung in report["rungs"]}
        assert (statuses["single"], statuses["dp_replicate3"]) == ("pass", "inconclusive")
        outcome = resuming.resume(disk / "run", launcher=launcher)
        assert outcome.exit_code() is ExitCode.PASS, outcome.report["sentence"]


@pytest.mark.parametrize("size", ["8k", "64k", "300k"])
def test_a_disk_too_small_for_a_run(tmp_path: Path, launcher: Any, size: str) -> None:
    with (
        mounted(tmp_path / "disk", size) as disk,
        pytest.raises(ConfigError, match=r"json: cannot be written: No space"),
    ):
        session.run(FEW, out=disk / "run", launcher=launcher)


def test_a_folder_that_cannot_be_written(tmp_path: Path, launcher: Any) -> None:
    with mounted(tmp_path / "disk", "4m", read_only=True) as disk:
        for out in (disk, disk / "run"):
            with pytest.raises(ConfigError, match=f"--out: {out} cannot be written: Read-only file system"):
                session.run(FEW, out=out, launcher=launcher)
