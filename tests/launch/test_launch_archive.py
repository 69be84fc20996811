"""One file for the ranks of a node."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from launch.archive import archive


def leave(folder: Path) -> dict[str, bytes]:
    files = {f"rank-{rank:05d}{end}": f"{rank}{end}".encode() * 50 for rank in (2, 3) for end in (".jsonl", ".log")}
    for name, data in {**files, "rank-00001.log": b"of another node", "job.json": b"{}"}.items():
        (folder / name).write_bytes(data)
    return files


def test_the_files_of_its_ranks_and_no_others(tmp_path: Path) -> None:
    files = leave(tmp_path)
    archive(tmp_path, [2, 3])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job.json", "rank-00001.log", "ranks-00002-00003.zip"]
    with zipfile.ZipFile(tmp_path / "ranks-00002-00003.zip") as zipped:
        assert {name: zipped.read(name) for name in zipped.namelist()} == files


def test_where_it_cannot_be_written_the_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = leave(tmp_path)

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(zipfile.ZipFile, "write", full)
    archive(tmp_path, [2, 3])
    assert {*files, "job.json", "rank-00001.log"} == {path.name for path in tmp_path.iterdir()}
