"""Every axis, and axes together, compute what one process computes: in float64, to the last few bits."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor
from worker_ranks import Keeper, keep, run, rung

from dist_checks.axes import Layout
from dist_checks.recipes import TrainSettings, load
from dist_checks.worker import entry, loop, mesh, rng

STEPS = 3
OPTIONS = {"samples": 44}
"""Batches of 31, 13 and, in a second epoch, 31 samples."""
EXACT = 1e-12


def payload(axes: Mapping[str, Any], precision: str = "fp64", **more: Any) -> dict[str, Any]:
    options = OPTIONS | more.pop("options", {})
    steps = more.pop("steps", STEPS)
    return {"rung": rung(axes, precision=precision, steps=steps).to_json(), "options": options, **more}


@pytest.fixture(scope="module")
def singles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """By the optimizer: tied weights under AdamW, untied ones under SGD."""
    return {name: run(keep, payload({}, **recipe(name)), tmp_path_factory.mktemp(name))[0] for name in ("adamw", "sgd")}


def recipe(optimizer: str) -> dict[str, Any]:
    if optimizer == "adamw":
        return {}
    return {"options": {"tied": False}, "train": {"optimizer": "sgd", "learning_rate": 0.1}}


def assert_shared_out(ranks: Sequence[Mapping[str, Any]], single: Mapping[str, Any], layout: Layout) -> None:
    """The samples of each step are those of the single, once each over data ranks, the same in a tp group."""
    for step, [whole] in enumerate(single["ids"]):
        read: dict[int, list[Any]] = {}
        for rank, kept in enumerate(ranks):
            parts = kept["ids"][step]
            assert {part["loss_scale"] for part in parts} == {layout.data_size}  # gradients are averaged over them
            mine = [part["ids"] for part in parts]
            assert read.setdefault(layout.data_rank(rank), mine) == mine
        assert sorted(i for parts in read.values() for part in parts for i in part) == sorted(whole["ids"])


def assert_equal(rank: Mapping[str, Any], single: Mapping[str, Any]) -> None:
    """Distances relative to a tensor's norm, or to 1/1000 of the whole gradient's: a key bias has only rounding."""
    for mine, right in zip(rank["gradients"], single["gradients"], strict=True):
        assert list(mine) == list(right)
        whole = math.hypot(*(tensor.norm().item() for tensor in right.values()))
        for name, tensor in right.items():
            allowed = EXACT * max(tensor.norm().item(), whole / 1000)
            assert (mine[name] - tensor).norm().item() <= allowed, name
    for name, tensor in single["weights"][-1].items():
        assert (rank["weights"][-1][name] - tensor).abs().max().item() <= 1e-11, name
    assert rank["losses"] == pytest.approx(single["losses"], rel=EXACT)
    assert rank["norms"] == pytest.approx(single["norms"], rel=EXACT)


AXES = [
    ("adamw", {"dp_replicate": 3, "accum": 4}),
    ("sgd", {"dp_replicate": 2}),
    ("sgd", {"accum": 5}),
    ("adamw", {"dp_shard": 3}),
    ("adamw", {"tp": 2, "sp": True, "accum": 2}),
    ("adamw", {"dp_replicate": 2, "dp_shard": 2}),
    ("adamw", {"dp_replicate": 2, "tp": 2}),
    ("sgd", {"dp_shard": 2, "tp": 2, "sp": True, "accum": 2}),
]


@pytest.mark.parametrize(("optimizer", "axes"), AXES, ids=[f"{rung(a).id}-{o}" for o, a in AXES])
def test_as_one_process(optimizer: str, axes: dict[str, Any], singles: dict[str, Any], tmp_path: Path) -> None:
    ranks = run(keep, payload(axes, **recipe(optimizer)), tmp_path)
    for rank in ranks:
        assert_equal(rank, singles[optimizer])
    assert_shared_out(ranks, singles[optimizer], rung(axes).layout)
    if "sp" in axes:
        assert [rank["ids"][0][0]["tokens"] for rank in ranks[:2]] == [(0, 16, 32), (16, 32, 32)]


def test_the_loss_falls_and_gradients_are_clipped(singles: dict[str, Any]) -> None:
    for single in singles.values():
        assert single["losses"][-1] < single["losses"][0] - 0.1
        assert all(norm > 1.0 for norm in single["norms"])


def test_the_samples_of_a_single_add_up_to_its_gradient(singles: dict[str, Any]) -> None:
    kept = singles["adamw"]
    assert [sample for sample, _ in kept["samples"]] == kept["ids"][0][0]["ids"]
    for name, whole in kept["gradients"][0].items():
        parts = torch.stack([gradients[name] for _, gradients in kept["samples"]])
        torch.testing.assert_close(parts.sum(0), whole, rtol=1e-9, atol=1e-15, msg=name)


PRECISIONS = [
    ("fp32", {}),
    ("fp32", {"dp_shard": 2}),
    ("bf16", {}),
    ("bf16", {"tp": 2, "sp": True}),
    ("fp16", {}),
    ("fp16", {"dp_shard": 2}),
]


@pytest.mark.parametrize(("precision", "axes"), PRECISIONS, ids=[f"{rung(axes).id}-{p}" for p, axes in PRECISIONS])
def test_other_precisions(precision: str, axes: dict[str, Any], singles: dict[str, Any], tmp_path: Path) -> None:
    """Near the truth, no step left out, and equal on all ranks."""
    ranks = run(keep, payload({"precision": precision} | axes, precision, steps=2), tmp_path)
    for rank in ranks:
        assert rank["losses"] == pytest.approx(singles["adamw"]["losses"][:2], rel=2e-3)
        assert rank["norms"] == pytest.approx(singles["adamw"]["norms"][:2], rel=2e-2)
        assert rank["skipped"] == [False] * 2
        assert rank["scales"] == [2.0**12 if precision == "fp16" else None] * 2
        assert all(torch.equal(rank["weights"][-1][name], w) for name, w in ranks[0]["weights"][-1].items())


def overflow(given: Mapping[str, Any]) -> dict[str, list[Any]]:
    """On every rank: as keep, but in the first step one rank finds an overflow in one of its shards.

    The optimizer's first parameter is then a whole one, a norm: torch's own scaler would let the other ranks step.
    """
    right = loop.Trainer.reduce

    def reduce(self: loop.Trainer) -> None:
        right(self)
        loop.Trainer.reduce = right  # type: ignore[method-assign]
        self.optimizer.param_groups.reverse()
        if self.world.rank == 1:
            gradient = self.model.get_parameter("blocks.2.mlp.up.weight").grad
            assert isinstance(gradient, DTensor)
            gradient.to_local()[0, 0] = math.inf

    loop.Trainer.reduce = reduce  # type: ignore[method-assign]
    return keep(given)


def test_ranks_skip_a_step_together(tmp_path: Path) -> None:
    ranks = run(overflow, payload({"precision": "fp16", "tp": 2}, "fp16"), tmp_path)
    for rank in ranks:
        assert rank["skipped"] == [True, False, False]
        assert rank["scales"] == [2.0**12, 2.0**11, 2.0**11]


def test_random_states() -> None:
    """Equal where the samples are equal, and only there."""
    drawn = []
    for rank in range(4):
        rng.seed_rank(mesh.World(rung=rung({"dp_shard": 2, "tp": 2}), rank=rank, device=torch.device("cpu")))
        drawn.append(torch.rand(()).item())
    assert drawn[0] == drawn[1]
    assert drawn[2] == drawn[3]
    assert drawn[0] != drawn[2]


REFUSED = [
    ({"tp": 3}, {}, r"tp degree \(3\) must divide heads \(4\) of recipe gpt under tp"),
    ({"cp": 2}, {"length": 31}, r"cp degree \(2\) must divide sequence length \(31\) of recipe gpt under cp"),
    (
        {"cp": 2, "tp": 2, "sp": True},
        {"length": 30},
        r"cp x tp degree \(2 x 2\) must divide sequence length \(30\) .* under sp",
    ),
    ({"cp": 2}, {"dropout": 0.1}, r"cp cannot be combined with dropout \(0.1\)"),
    ({"tp": 2, "sp": True}, {"length": 31}, r"tp degree \(2\) must divide sequence length \(31\) .* under sp"),
    ({"tp": 2, "sp": True}, {"dropout": 0.1}, r"sp cannot be combined with dropout \(0.1\)"),
    ({"sp": True}, {}, "sp needs tp with a degree of at least 2"),
    (
        {"accum": 14},
        {},
        r"data ranks \(1\) x micro-batches \(14\) must be at most the smallest batch \(13 of 44 samples",
    ),
]


@pytest.mark.parametrize(("axes", "options", "message"), REFUSED, ids=[rung(axes).id for axes, _, _ in REFUSED])
def test_what_cannot_be_applied(axes: dict[str, Any], options: dict[str, Any], message: str) -> None:
    """Before any rank waits for another."""
    world = mesh.World(rung=rung(axes), rank=0, device=torch.device("cpu"))
    with pytest.raises(ValueError, match=message):
        loop.Trainer(
            recipe=load("gpt", OPTIONS | options),
            train=TrainSettings(),
            world=world,
            attach=lambda model, *_: Keeper(model),
        )


def test_the_launcher_started_too_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ValueError, match="rung dp_shard3 needs 3 ranks, the launcher started 1"):
        mesh.start(rung({"dp_shard": 3}), "cpu")


def entry_main(given: Mapping[str, Any]) -> bool:
    """On every rank: what a launcher calls; whether the faults have been imported by it."""
    entry.main(given)
    return "dist_checks.worker.faults" in sys.modules


def test_the_entry_leaves_a_trace(tmp_path: Path) -> None:
    given = payload({"dp_replicate": 2}, recipe="gpt", folder=str(tmp_path))
    assert run(entry_main, given, tmp_path) == [False, False]
    for rank in range(2):
        events = [json.loads(line) for line in (tmp_path / f"rank-0000{rank}.jsonl").read_text().splitlines()]
        assert events[0]["event"] == "header"
        assert events[0]["coordinates"] == dict.fromkeys(("pp", "dp_shard", "ep", "cp", "tp"), 0) | {
            "dp_replicate": rank
        }
        assert events[0]["blocks"] == ["blocks.0", "blocks.1", "blocks.2", "blocks.3"]
        steps = [event for event in events if event["event"] == "step"]
        assert [step["epoch"] for step in steps] == [0, 0, 1]
        assert steps[0]["learning_rates"] == pytest.approx([3e-3 / 5] * 2)
        assert events[-1]["event"] == "end"


def test_a_recipe_describes_itself(tmp_path: Path) -> None:
    entry.describe({"folder": str(tmp_path), "recipe": "gpt", "options": {"tied": False}})
    told = json.loads((tmp_path / "recipe.json").read_text())
    told.pop("accelerators")
    told.pop("frameworks")
    assert told == {
        "name": "gpt",
        "parameters": sum(p.numel() for p in load("gpt", {"tied": False}).model().parameters()),
        "samples": 150,
        "held_out": 13,
        "classes": 256,
        "blocks": ["blocks.0", "blocks.1", "blocks.2", "blocks.3"],
        "divisors": {
            "tp": {"heads": 4, "MLP width": 128, "vocabulary": 256},
            "sp": {"sequence length": 32},
            "cp": {"sequence length": 32},
        },
        "lacking": {"ep": "needs a recipe with experts; gpt has none"},
        "experts": [],
        "stages": 6,
        "custom": {},
        "missing": {},
        "dropout": 0.0,
        "masks_alike": ["tp"],
        "mixture": None,
        "next_token": True,
        "spares_norms": True,
        "starts_trained": False,
    }
