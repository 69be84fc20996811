"""What ranks leave behind is read as far as it goes, and what is missing is named."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from judging_cases import DP
from tampering import Tamper
from tiny_world import World, make_run, rung

from dist_checks.judging.files import parts
from dist_checks.judging.judge import report
from dist_checks.judging.reading import RECORD, TraceError, rank_list, read
from dist_checks.trace import RECORD_BYTES, Kind, digests_path, events_path
from launch.archive import archive


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    World(rung({"tp": 2}), tmp_path).run()
    return tmp_path


def test_reads_what_the_writer_wrote(folder: Path) -> None:
    trace = read(folder, 2)
    assert [rank.rank for rank in trace.ranks] == [0, 1]
    assert trace.cut == ""
    assert trace.steps == (0, 1, 2, 3)
    assert trace.missing == ()
    assert trace.header["rung"] == "tp2"
    rank = trace.ranks[1]
    assert rank.ended
    assert len(rank.digests) * RECORD_BYTES == digests_path(folder, 1).stat().st_size
    entry = rank.entries[int(rank.digests.entry[0])]
    assert entry.kind is Kind.WEIGHT
    assert entry.name == "norm.weight"
    record = rank.digests.take(np.array([0]))[0]
    assert record["fingerprint"] == rank.digests.fingerprint[0]
    assert record["elements"] == entry.extent.elements


def test_ranks_share_the_extents_that_are_equal(folder: Path) -> None:
    one, two = read(folder, 2).ranks
    names = {entry.name: entry for entry in two.entries.values() if entry.kind is Kind.WEIGHT}
    for entry in one.entries.values():
        if entry.kind is Kind.WEIGHT and entry.name == "norm.weight":
            assert names["norm.weight"].extent is entry.extent


@pytest.mark.parametrize("lost", [1, RECORD_BYTES - 1, RECORD_BYTES + 7])
def test_a_cut_record_is_left_out_and_named(folder: Path, lost: int) -> None:
    path = digests_path(folder, 1)
    whole = path.stat().st_size // RECORD_BYTES
    path.write_bytes(path.read_bytes()[:-lost])
    trace = read(folder, 2)
    assert len(trace.ranks[1].digests) == whole - 1 - lost // RECORD_BYTES
    assert re.search(r"rank-00001.digests of rank 1 is cut inside record \d+", trace.cut)


def test_a_whole_record_that_is_missing_is_not_seen_but_the_end_is(folder: Path) -> None:
    path = events_path(folder, 0)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert read(folder, 2).cut == "rank 0 did not come to the end"


def test_a_damaged_record_ends_the_file(folder: Path) -> None:
    path = digests_path(folder, 0)
    data = bytearray(path.read_bytes())
    data[3 * RECORD_BYTES + 100] ^= 1
    path.write_bytes(data)
    trace = read(folder, 2)
    assert len(trace.ranks[0].digests) == 3
    assert "damaged at record 3" in trace.cut


def test_a_cut_line_is_left_out_and_named(folder: Path) -> None:
    path = events_path(folder, 1)
    path.write_bytes(path.read_bytes()[:-5])
    trace = read(folder, 2)
    assert "rank-00001.jsonl of rank 1 is cut or damaged at line" in trace.cut
    assert not trace.ranks[1].ended


def test_records_of_an_entry_that_was_lost_with_its_line_are_left_out(folder: Path) -> None:
    path = events_path(folder, 1)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2]))  # header, one entry
    trace = read(folder, 2)
    assert len(trace.ranks[1].digests) == 1
    assert "belongs to no entry" in trace.problems[0]


def test_ranks_without_files_are_missing(folder: Path) -> None:
    events_path(folder, 0).unlink()
    trace = read(folder, 4)
    assert trace.missing == (0, 2, 3)
    assert trace.cut == "ranks 0, 2 and 3 left no trace"


def test_a_rank_without_digests_is_a_problem(folder: Path) -> None:
    digests_path(folder, 1).unlink()
    assert read(folder, 2).cut == "rank-00001.digests of rank 1 is missing"


def test_an_empty_folder_is_an_empty_trace(tmp_path: Path) -> None:
    trace = read(tmp_path / "nowhere", 2)
    assert (trace.ranks, trace.steps, trace.cut) == ((), (), "no rank left a trace")


def test_floats_that_json_does_not_know(tmp_path: Path) -> None:
    class Nan(Tamper):
        def event(self, step: int, rank: int, event: dict[str, object]) -> dict[str, object]:
            return event | {"loss_sum": math.nan, "printed_loss": -math.inf}

    World(rung(), tmp_path, Nan()).run()
    step = read(tmp_path, 1).ranks[0].steps[0]
    assert math.isnan(step["loss_sum"])
    assert step["printed_loss"] == -math.inf


def test_another_version_is_refused_with_what_to_do(folder: Path) -> None:
    path = events_path(folder, 0)
    lines = path.read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | {"schema": 99})
    path.write_text("\n".join(lines))
    with pytest.raises(TraceError, match="has trace schema 99; this version reads schema 2: judge it with the version"):
        read(folder, 2)


def test_the_record_is_that_of_the_writer() -> None:
    assert RECORD.itemsize == RECORD_BYTES


@pytest.mark.parametrize(
    ("ranks", "words"),
    [([3], "rank 3"), ([0, 2, 5], "ranks 0, 2 and 5"), (list(range(1000)), "ranks 0, 1, 2, 3, 4, 5 and 994 more")],
)
def test_rank_list(ranks: list[int], words: str) -> None:
    assert rank_list(ranks) == words


def test_archives_of_nodes_are_read_as_their_files_are(tmp_path: Path) -> None:
    """Whole, beside single files that are left over, and damaged: then its ranks have left nothing."""
    run = make_run(tmp_path / "run", [rung(), rung(DP)], {})
    before = report(run)
    own = run / "rungs" / "dp_replicate3"
    kept = (own / "rank-00000.jsonl").read_bytes()
    archive(own, [0, 1])
    archive(own, [2])
    assert sorted(path.name for path in own.glob("rank*")) == ["ranks-00000-00001.zip", "ranks-00002-00002.zip"]
    assert report(run) == before
    (own / "rank-00000.jsonl").write_bytes(kept)
    assert report(run) == before
    (own / "rank-00000.jsonl").unlink()
    damaged = own / "ranks-00002-00002.zip"
    for data in (damaged.read_bytes()[:-30], b""):
        damaged.write_bytes(data)
        assert read(own, 3).missing == (2,)
        assert report(run)["status"] == "inconclusive"


def test_a_bit_that_is_flipped_in_an_archive_is_noticed(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [rung(), rung(DP)], {})
    own = run / "rungs" / "dp_replicate3"
    archive(own, [0, 1, 2])
    whole = own / "ranks-00000-00002.zip"
    part = parts(own)["rank-00001.digests"]
    data = bytearray(whole.read_bytes())
    data[part.offset + part.size // 2] ^= 1
    whole.write_bytes(data)
    assert "rank-00001.digests of rank 1 is damaged" in read(own, 3).cut
