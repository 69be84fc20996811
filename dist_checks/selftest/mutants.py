"""Mutants of collectives and of the state of one rank: which are caught, which change nothing, which are missed."""

from __future__ import annotations

import filecmp
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dist_checks.axes import SPEC, Axis, Layout, Setting
from dist_checks.selftest import ladder
from dist_checks.selftest.catalogue import SMALL
from dist_checks.selftest.sharing import SharingLauncher

WATCH, KEEP = "mutant:watch", "mutant:keep:"

COLLECTIVES: Mapping[str, tuple[str, ...]] = {
    "drop": ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "recv"),
    "double": ("all_reduce", "reduce_scatter", "all_gather", "broadcast"),
    "wrong_group": ("all_reduce", "reduce_scatter", "all_gather", "broadcast"),
    "mean_for_sum": ("all_reduce", "reduce_scatter"),
    "wrong_scale": ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "recv"),
    "one_step_late": ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "recv"),
    "stale_buffer": ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "recv"),
    "permuted": ("all_gather", "all_to_all"),
}
"""Operators and the kinds of collective that they can be done to (``worker/mutations/operators.py``)."""

STATES = (
    "flip_bit",
    "transpose_shard",
    "swap_shards",
    "skip_step",
    "other_rate",
    "other_batch",
    "other_loss_scale",
    "other_random_state",
)
"""Of the last rank (``worker/mutations/states.py``)."""

LADDERS: Mapping[Axis, dict[str, Any]] = {
    Axis.DP_REPLICATE: {"axes": {"dp_replicate": 3}},
    Axis.DP_SHARD: {"axes": {"dp_shard": 3}},
    Axis.TP: {"axes": {"tp": 2}},
    Axis.SP: {"axes": {"tp": 2, "sp": True}},
    Axis.CP: {"axes": {"cp": 2}},
    Axis.PP: {"axes": {"pp": 2}},
    Axis.EP: {"axes": {"ep": 2}, "recipe": "moe"},
}
"""Where each axis is mutated: alone, so that there is one suspect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    id: str
    operator: str
    axis: Axis


@dataclass(slots=True)
class Score:
    caught: int = 0
    equivalent: int = 0
    missed: int = 0
    blamed: int = 0
    """Of those that were caught: blamed on the axis, and on nothing else."""

    def to_json(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ("caught", "equivalent", "missed", "blamed")}


def matrix(axis: Axis) -> dict[str, Any]:
    return {
        "name": "mutants",
        "steps": 3,
        "options": SMALL,
        "launch": {"cold_twin": False, "deadline": 60.0},
        "blame": {"budget": 0},
        **LADDERS[axis],
    }


def rung_of(axis: Axis) -> Setting:
    return Setting(LADDERS[axis]["axes"])


def run(
    launcher: SharingLauncher, out: Path, *, most: int | None, seed: int, note: Callable[[str], None]
) -> tuple[dict[str, Score], list[str]]:
    """Scores by operator, and the mutants that changed something unseen. ``most`` None: all of them."""
    kinds = {axis: _watched(launcher, out, axis) for axis in LADDERS}
    mutants = [mutant for axis, found in kinds.items() for mutant in _of(axis, found)]
    if most is not None and len(mutants) > most:
        mutants = random.Random(seed).sample(mutants, most)
    scores: dict[str, Score] = {}
    missed = []
    for mutant in mutants:
        score = scores.setdefault(mutant.operator, Score())
        folder = out / mutant.id.replace(":", "_")
        report = _planted(launcher, folder, mutant.axis, mutant.id)
        if report["status"] == "fail":
            score.caught += 1
            named = {axis for broken in report["broken"] for axis in broken["axes"]}
            score.blamed += report["blamed"] == "axis" and named == {mutant.axis.value}
            seen = report["sentence"]
        elif _equal(launcher, out, folder, mutant):
            score.equivalent += 1
            seen = "equivalent: every tensor of every rank has the same bits"
        else:
            score.missed += 1
            missed.append(f"{mutant.id} changed something and gave: {report['sentence']}")
            seen = f"MISSED {report['sentence']}"
        note(f"{mutant.id:<48} {seen}")
    return scores, missed


def _planted(launcher: SharingLauncher, folder: Path, axis: Axis, fault: str) -> dict[str, Any]:
    launcher.harmless = lambda setting: not setting.structural
    try:
        select = rung_of(axis).name
        return ladder.report(matrix(axis), folder, launcher, fault=fault, select=select)
    finally:
        launcher.harmless = lambda setting: False


def _watched(launcher: SharingLauncher, out: Path, axis: Axis) -> list[str]:
    """The kinds of collective in the groups of the axis, after a healthy run that others are compared with."""
    ladder.report(matrix(axis), out / f"healthy_{axis}", launcher)
    folder = out / f"watched_{axis}"
    _planted(launcher, folder, axis, WATCH)
    setting = rung_of(axis)
    along = axis if SPEC[axis].devices else SPEC[axis].needs[0]
    groups = {",".join(map(str, ranks)) for ranks in Layout(setting).groups(along)}
    found: dict[str, None] = {}
    for log in sorted((folder / "rungs" / setting.name).glob("rank-*.log")):
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(f"{WATCH} ") and line.split()[2] in groups:
                found[line.split()[1]] = None
    return list(found)


def _of(axis: Axis, kinds: list[str]) -> Iterator[Mutant]:
    ranks = Layout(rung_of(axis)).world_size
    for operator, possible in COLLECTIVES.items():
        for kind in possible:
            if kind in kinds and not (operator == "wrong_group" and ranks == 2):  # of two ranks that is a drop
                yield Mutant(id=f"mutant:{operator}:{axis}:{kind}", operator=operator, axis=axis)
    for operator in STATES:
        yield Mutant(id=f"mutant:{operator}:{axis}", operator=operator, axis=axis)


def _equal(launcher: SharingLauncher, out: Path, folder: Path, mutant: Mutant) -> bool:
    """Full gradients and weights of all ranks and steps, with and without the mutant, byte for byte."""
    right, wrong = (out / f"tensors_{mutant.axis}").absolute(), (folder / "tensors").absolute()
    if not right.exists():
        _planted(launcher, out / f"kept_{mutant.axis}", mutant.axis, f"{KEEP}{right}")
    _planted(launcher, folder / "kept", mutant.axis, f"{mutant.id},{KEEP}{wrong}")
    names = sorted(path.name for path in right.iterdir())
    if not names or names != sorted(path.name for path in wrong.iterdir()):
        return False
    _, differ, lost = filecmp.cmpfiles(right, wrong, names, shallow=False)
    return not differ and not lost
