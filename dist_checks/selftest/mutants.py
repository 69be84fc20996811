"""Mutants of collectives and of the state of one rank: which are caught, which change nothing, which are missed."""

from __future__ import annotations

import filecmp
import random
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dist_checks.axes import SPEC, Axis, Layout, Setting
from dist_checks.selftest import ladder
from dist_checks.selftest.catalogue import SMALL
from dist_checks.selftest.grounds import Ground, Planting, judged, plant
from dist_checks.selftest.sharing import SharingLauncher

WATCH, KEEP = "mutant:watch", "mutant:keep:"
TENSORS = "tensors"
"""Folder of a run: the bytes of what its ranks held."""

RUNGS: Mapping[Axis, str] = {
    Axis.DP_REPLICATE: "dp_replicate3",
    Axis.DP_SHARD: "dp_shard3",
    Axis.TP: "tp2",
    Axis.SP: "tp2+sp",
    Axis.CP: "cp2",
    Axis.PP: "pp2",
    Axis.EP: "ep2",
    Axis.ZERO: "dp_replicate3+zero2",
    Axis.SCHEDULE: "pp2+1f1b",
    Axis.ACCUM: "dp_replicate3+accum5",
    Axis.CKPT_ACT: "dp_shard3+ckpt_act",
    Axis.PRECISION: "dp_shard3+bf16",
}
"""Where each axis is mutated: alone, or with the one axis whose collectives it works on: there is one suspect."""

DROPOUT = 0.1
"""Of the ladders in which random states are mutated: without dropout nothing is drawn."""

NEVER_DROPS = (Axis.SP, Axis.CP, Axis.EP)
"""What refuses dropout, or has a recipe without."""

EVERY = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "recv")

COLLECTIVES: Mapping[str, tuple[str, ...]] = {
    "drop": EVERY,
    "double": ("all_reduce", "reduce_scatter", "all_gather", "broadcast"),
    "wrong_group": ("all_reduce", "reduce_scatter", "all_gather", "broadcast"),
    "mean_for_sum": ("all_reduce", "reduce_scatter"),
    "wrong_scale": EVERY,
    "one_step_late": EVERY,
    "stale_buffer": EVERY,
    "permuted": ("all_gather", "all_to_all", "reduce_scatter"),
}
"""Operators and the kinds of collective that they can be done to (``worker/mutations/operators.py``)."""

RANDOM = "other_random_state"

STATES = (
    "flip_bit",
    "transpose_shard",
    "swap_halves",
    "swap_shards",
    "skip_step",
    "other_rate",
    "other_batch",
    "other_loss_scale",
    RANDOM,
)
"""Of the last rank (``worker/mutations/states.py``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    id: str
    operator: str
    axis: Axis

    @property
    def dropout(self) -> bool:
        return self.operator == RANDOM and self.axis not in NEVER_DROPS

    @property
    def guilty(self) -> set[str]:
        """The axes that are to be named: a mutant does nothing where its own is off, and needs the collectives."""
        setting = Setting.parse(RUNGS[self.axis])
        return {axis.value for axis in setting if axis is self.axis or axis not in SPEC[self.axis].needs}


@dataclass(slots=True)
class Score:
    caught: int = 0
    equivalent: int = 0
    missed: int = 0
    blamed: int = 0
    """Of those that were caught: blamed on their axis, and on nothing else."""

    def to_json(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("caught", "equivalent", "missed", "blamed")}


@dataclass(slots=True)
class Found:
    """What came of all of them."""

    scores: dict[str, Score] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    """One for each mutant, in the order of the list."""
    missed: list[str] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    """Healthy rungs that did not pass."""


def run(
    launcher: SharingLauncher,
    out: Path,
    *,
    most: int | None,
    seed: int,
    missing: tuple[Axis, ...] = (),
    note: Callable[[str], None],
) -> Found:
    """Every mutant, or ``most`` of them drawn by ``seed``, in the axes that are not ``missing`` here. They run side by
    side: each is one rung, whose ladder has been run healthy before."""
    found = Found()
    axes = [axis for axis in RUNGS if axis not in missing]
    grounds = {(axis, False): ground(axis, out, axes) for axis in axes}
    found.alarms += alarms(grounds.values(), launcher, ("fail", "inconclusive"))
    kinds = watched(launcher, out, grounds, found.alarms)
    mutants = [mutant for axis, of_axis in kinds.items() for mutant in all_of(axis, of_axis)]
    # In an order that says something of every axis and operator, however early it is cut short.
    mutants = random.Random(seed).sample(mutants, len(mutants) if most is None else min(most, len(mutants)))
    dropped = list(dict.fromkeys(mutant.axis for mutant in mutants if mutant.dropout))
    grounds |= {(axis, True): ground(axis, out, dropped, dropout=True) for axis in dropped}
    # With dropout nothing can be compared: that is no alarm.
    found.alarms += alarms([grounds[axis, True] for axis in dropped], launcher, ("fail",))

    right = {each.name: Planting(each, out / f"kept_{each.name}", "") for each in grounds.values()}
    for _ in plant(launcher, (keeping(each) for each in right.values())):
        pass
    plantings = {
        mutant.id: Planting(grounds[mutant.axis, mutant.dropout], out / mutant.id.replace(":", "_"), mutant.id)
        for mutant in mutants
    }
    by_id = {mutant.id: mutant for mutant in mutants}
    rows: dict[str, dict[str, Any]] = {}
    for done in plant(launcher, (keeping(each) for each in plantings.values())):
        id = done.fault.partition(",")[0]
        rows[id] = row(by_id[id], done, right[done.ground.name].folder / TENSORS)
        shutil.rmtree(done.folder / TENSORS, ignore_errors=True)
        note(line(rows[id]))
    for id, mutant in by_id.items():
        if id in rows:
            count(found, mutant, rows[id])
    return found


def ground(axis: Axis, out: Path, axes: Sequence[Axis], *, dropout: bool = False) -> Ground:
    """In one ladder for all ``axes`` of its recipe."""
    recipe = "moe" if axis is Axis.EP else "gpt"
    matrix = {
        "name": "mutants",
        "steps": 3,
        "recipe": recipe,
        "options": {**SMALL, **({"dropout": DROPOUT} if dropout else {})},
        "combine": {
            "mode": "singles",
            "include": [RUNGS[each] for each in axes if (each is Axis.EP) == (recipe == "moe")],
        },
        "launch": {"cold_twin": False, "deadline": 180.0, "stall": 60.0},
        "blame": {"budget": 0},
    }
    name = f"{recipe}_dropout" if dropout else recipe
    return Ground(f"{axis}_{name}", matrix, RUNGS[axis], out / f"healthy_{name}")


def alarms(grounds: Iterable[Ground], launcher: SharingLauncher, raised: tuple[str, ...]) -> list[str]:
    """Runs each ladder once, healthy."""
    found = []
    for each in {ground.folder: ground for ground in grounds}.values():
        report = ladder.report(each.matrix, each.folder, launcher)
        found += [f"mutants: {rung['id']} is {rung['status']}" for rung in report["rungs"] if rung["status"] in raised]
    return found


def keeping(planting: Planting) -> Planting:
    """The same, where each rank leaves its tensors."""
    kept = f"{KEEP}{(planting.folder / TENSORS).absolute()}"
    return Planting(planting.ground, planting.folder, f"{planting.fault},{kept}" if planting.fault else kept)


def row(mutant: Mutant, planting: Planting, right: Path) -> dict[str, Any]:
    """What was seen of one mutant. One that is not caught is equivalent only if every tensor has the same bytes."""
    report = judged(planting.folder)
    named = {axis for broken in report["broken"] for axis in broken["axes"]}
    # Weights that ranks start from and no other rung does are seen, though nobody can say what is broken. With dropout
    # nothing can be compared anyway.
    caught = report["status"] == "fail" or (report["blamed"] == "not_comparable" and not mutant.dropout)
    return {
        "id": mutant.id,
        "planted_in": planting.ground.rung,
        "caught": caught,
        "equivalent": not caught and equal(right, planting.folder / TENSORS),
        "blamed_rightly": caught and report["blamed"] == "axis" and named == mutant.guilty,
        "checks": sorted({f["check"] for f in report["findings"] if f["status"] == "fail"}),
        "sentence": report["sentence"],
    }


def line(row: Mapping[str, Any]) -> str:
    seen = row["sentence"]
    if row["equivalent"]:
        seen = "equivalent: every tensor of every rank has the same bytes"
    elif not row["caught"]:
        seen = f"MISSED {seen}"
    return f"{row['id']:<48} {seen}"


def count(found: Found, mutant: Mutant, row: dict[str, Any]) -> None:
    score = found.scores.setdefault(mutant.operator, Score())
    score.caught += row["caught"]
    score.blamed += row["blamed_rightly"]
    score.equivalent += row["equivalent"]
    found.rows.append(row)
    if not row["caught"] and not row["equivalent"]:
        score.missed += 1
        found.missed.append(f"{mutant.id} changed something and gave: {row['sentence']}")


def watched(
    launcher: SharingLauncher, out: Path, grounds: Mapping[tuple[Axis, bool], Ground], alarms: list[str]
) -> dict[Axis, list[str]]:
    """The kinds of collective in the groups of each axis. The process group that finds out must not be found itself:
    else every mutant would be."""
    folders = {axis: out / f"watched_{axis}" for axis, _ in grounds}
    broken = set()
    for done in plant(launcher, (Planting(ground, folders[axis], WATCH) for (axis, _), ground in grounds.items())):
        report = judged(done.folder)
        if report["status"] != "pass":
            broken.add(done.ground.rung)
            alarms.append(f"mutants: {done.ground.rung} with a process group around gloo: {report['sentence']}")
    kinds: dict[Axis, list[str]] = {}
    for (axis, _), ground in grounds.items():
        if ground.rung in broken:
            continue  # whatever is planted there would be found
        words = (line.split() for line in ground.logs(folders[axis]) if line.startswith(f"{WATCH} "))
        groups = {",".join(map(str, ranks)) for ranks in lines(axis)}
        kinds[axis] = list(dict.fromkeys(kind for _, kind, ranks in words if ranks in groups))
    return kinds


def lines(axis: Axis) -> tuple[tuple[int, ...], ...]:
    """The ranks of each group that the axis works in, where it is mutated."""
    return Layout(Setting.parse(RUNGS[axis])).lines(axis)


def all_of(axis: Axis, kinds: list[str]) -> Iterator[Mutant]:
    """One for each kind of collective and operator, and one for each operator on states."""
    two = all(len(ranks) == 2 for ranks in lines(axis))
    for operator, possible in COLLECTIVES.items():
        for kind in possible:
            if kind in kinds and not (operator == "wrong_group" and two):  # of two ranks that is a drop
                yield Mutant(id=f"mutant:{operator}:{axis}:{kind}", operator=operator, axis=axis)
    for operator in STATES:
        yield Mutant(id=f"mutant:{operator}:{axis}", operator=operator, axis=axis)


def equal(right: Path, wrong: Path) -> bool:
    """Full gradients, weights, buffers and optimizer state of all ranks and steps, byte for byte."""
    names = sorted(path.name for path in right.iterdir()) if right.is_dir() else []
    if not names or not wrong.is_dir() or names != sorted(path.name for path in wrong.iterdir()):
        return False
    _, differ, lost = filecmp.cmpfiles(right, wrong, names, shallow=False)
    return not differ and not lost
