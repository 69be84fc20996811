"""Real gloo worlds: what their ranks write adds up to what one process writes, and the probe takes no part."""

from __future__ import annotations

from collections import defaultdict
from functools import reduce
from math import fsum, sqrt
from pathlib import Path

import pytest
import torch
from probe_worlds import Way, run, train
from torch.distributed.tensor import DTensor

from dist_checks.judging.reading import read
from dist_checks.probe.collectives import collectives
from dist_checks.trace import BEFORE, Entry, Kind, Values, add

WAYS = {
    "ddp2": Way(axes={"dp_replicate": 2}),
    "fsdp3": Way(axes={"dp_shard": 3}),
    "hsdp2x2": Way(axes={"dp_replicate": 2, "dp_shard": 2}),
    "tp2": Way(axes={"tp": 2}),
    "tp2+sp": Way(axes={"tp": 2}, sequence=True),
    "fsdp2xtp2": Way(axes={"dp_shard": 2, "tp": 2}),
    "fsdp2xtp2+sp": Way(axes={"dp_shard": 2, "tp": 2}, sequence=True),
    "fsdp1_3": Way(axes={"dp_shard": 3}, flat=True),
    "fsdp1_3_flat": Way(axes={"dp_shard": 3}, flat=False),
    "fsdp1_hybrid2x2": Way(axes={"dp_replicate": 2, "dp_shard": 2}, flat=True),
}

Key = tuple[Kind, str, int, int]


def recorded(folder: Path, size: int) -> dict[Key, list[tuple[Entry, Values]]]:
    """For each tensor and moment, what each rank wrote of it."""
    trace = read(folder, size)
    assert trace.cut == ""
    out: dict[Key, list[tuple[Entry, Values]]] = defaultdict(list)
    for rank in trace.ranks:
        for record in rank.digests.take(slice(None)):  # type: ignore[arg-type]  # a slice indexes as well
            step, number, item, *numbers, sketch, _, _ = record.tolist()
            entry = rank.entries[number]
            out[entry.kind, entry.name, step, item].append((entry, Values._make((*numbers, tuple(sketch)))))
    return out


def together(parts: list[tuple[Entry, Values]]) -> Values:
    """Of replicas one, of shards and partial sums all."""
    if any(entry.extent.partial for entry, _ in parts):
        return reduce(add, (values for _, values in parts))
    regions: dict[object, Values] = {}
    for entry, values in parts:
        replica = regions.setdefault(entry.extent.region, values)
        if entry.kind is not Kind.OUTPUT_GRADIENT:
            assert replica.fingerprint == values.fingerprint, entry
    return reduce(add, regions.values())


def distance(a: Values, b: Values) -> float:
    return sqrt(fsum((x - y) ** 2 for x, y in zip(a.sketch, b.sketch, strict=True)))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> dict[Key, Values]:
    folder = tmp_path_factory.mktemp("single")
    run(record, Way(axes={}), folder / "run", folder / "single")
    return {key: values for key, [(_, values)] in recorded(folder / "single", 1).items()}


def record(way: Way, rank: int, folder: Path) -> None:
    train(way, rank, folder)


@pytest.mark.parametrize("name", WAYS)
def test_parts_add_up_to_the_tensors_of_one_process(name: str, single: dict[Key, Values], tmp_path: Path) -> None:
    way = WAYS[name]
    run(record, way, tmp_path / "run", tmp_path / name)
    found = recorded(tmp_path / name, way.size)
    assert set(found) == set(single)
    for key, reference in single.items():
        values, (kind, _, step, _) = together(found[key]), key
        partial = any(entry.extent.partial for entry, _ in found[key])
        if kind is Kind.WEIGHT and step == BEFORE:
            assert values.fingerprint == reference.fingerprint, key
        if not partial:
            assert (values.elements, values.nonfinite) == (reference.elements, 0), key
        noise = 1e-13 if kind is Kind.STATE else 1e-12
        assert distance(values, reference) <= 1e-11 * sqrt(reference.sum_squares) + noise, key


def test_partial_and_strided_tensors_were_among_them(tmp_path: Path) -> None:
    """What the test above would not notice: that these cases had not come up at all."""
    run(record, WAYS["tp2+sp"], tmp_path / "run", tmp_path / "sp")
    found = recorded(tmp_path / "sp", 2)
    (entry, _), (other, _) = found[Kind.GRADIENT, "blocks.0.norm.weight", 0, -1]
    assert entry.extent == other.extent
    assert entry.extent.partial == ("tp",)
    (entry, _), (other, _) = found[Kind.OUTPUT, "blocks.0", 0, 5]
    assert [e.extent.boxes[0].offset for e in (entry, other)] == [(0, 0), (4, 0)]
    (entry, _), (other, _) = found[Kind.WEIGHT, "embedding.weight", 0, -1]
    assert [e.extent.boxes[0].length for e in (entry, other)] == [(7, 6), (6, 6)]


def with_and_without(way: Way, rank: int, folder: Path) -> dict[str, object]:
    counts = [collectives()]
    models = []
    for place in (None, folder):
        torch.manual_seed(5)
        models.append(train(way, rank, place))
        counts.append(collectives())
    weights = [[p.to_local() if isinstance(p, DTensor) else p.detach() for p in model.parameters()] for model in models]
    return {
        "counts": counts,
        "equal": all(torch.equal(a, b) for a, b in zip(*weights, strict=True)),
    }


@pytest.mark.parametrize("name", ["ddp2", "fsdp2", "tp2+sp", "fsdp1_3"])
def test_the_probe_communicates_nothing_and_changes_no_bit(name: str, tmp_path: Path) -> None:
    way = WAYS.get(name, Way(axes={"dp_shard": 2}))
    for result in run(with_and_without, way, tmp_path / "run", tmp_path / name):
        start, without, both = (total(counts) for counts in result["counts"])
        assert without - start > 5
        assert both - without == without - start
        assert result["equal"]


def total(counts: dict[str, dict[str, int]]) -> int:
    return sum(sum(operations.values()) for operations in counts.values())


def test_evidence_counts_collectives_by_axis(tmp_path: Path) -> None:
    run(record, WAYS["fsdp2xtp2"], tmp_path / "run", tmp_path / "trace")
    for rank in read(tmp_path / "trace", 4).ranks:
        seen = rank.evidence["collectives"]
        assert seen["tp"]["all_reduce"] > 0
        assert seen["dp_shard"]["all_gather"] > 0
        assert "scatter" not in seen["tp"], "sharding the model is over before the probe is attached"
        assert rank.evidence["matmul_dtypes"] == ["float64"]
        assert rank.evidence["unrecorded"] == []
