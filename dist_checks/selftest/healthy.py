"""A long row of healthy rungs: other seeds, models and optimizers, every axis in every precision. Nothing may be found,
and what is furthest from right is told as a share of what is allowed."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dist_checks import stored
from dist_checks.axes import ZERO_STAGES, Axis, Setting
from dist_checks.rung import Role, Rung
from dist_checks.selftest import ladder
from dist_checks.selftest.sharing import SharingLauncher

SEEDS = 10

PRECISIONS = ("fp64", "fp32", "bf16", "fp16")

GPT = (
    *("pp2", "pp2+1f1b", "pp2+interleaved", "dp_replicate3", "dp_shard3", "cp2", "tp2", "tp4", "tp2+sp", "accum5"),
    *("ckpt_act", "fused", "dp_replicate3+zero1", "dp_replicate3+zero2", "dp_replicate3+zero3"),
    *("dp_replicate3+zeroredundancy", "dp_replicate3+accum5", "dp_shard3+accum5", "dp_shard3+ckpt_act", "tp2+fused"),
    *("dp_replicate2+dp_shard3", "dp_replicate2+tp2", "dp_shard2+tp2+sp", "cp2+tp2", "dp_shard2+cp2", "pp2+tp2"),
    *("pp2+dp_shard2", "pp2+accum2", "dp_replicate3+zero2+accum5"),
)
"""Every axis of the first recipe, alone and in the combinations that break most often."""

MOE = ("ep2", "ep4", "dp_replicate2+ep2", "dp_shard2+ep2", "ep2+tp2", "ep2+accum5", "ep2+ckpt_act", "tp2", "dp_shard3")

ONCE = ("compile", "tp2+compile", "dp_shard3+bf16_fsdp", "tp2+bf16_pure")
"""Compiling takes a minute of one core the first time."""

OPTIMIZERS: tuple[dict[str, Any], ...] = ({}, {"optimizer": "sgd", "learning_rate": 0.1})

MODELS: tuple[dict[str, Any], ...] = (
    {"layers": 2, "width": 16},
    {"layers": 2, "width": 32},
    {"layers": 3, "width": 16},
)


@dataclass(slots=True)
class Margins:
    """How near healthy rungs come to the limits, of each check: what was observed over what is allowed."""

    shares: dict[tuple[str, str, str], list[tuple[float, str]]] = field(default_factory=dict)
    """(precision, ``single`` or ``rung``, check) -> shares, each with where it was seen."""

    def add(self, rung: Rung, finding: Mapping[str, Any], where: str) -> None:
        observed, allowed = finding["observed"], finding["allowed"]
        if isinstance(observed, int | float) and isinstance(allowed, int | float) and allowed > 0:
            role = "single" if rung.role is Role.SINGLE else "rung"
            self.shares.setdefault((rung.precision, role, finding["check"]), []).append((observed / allowed, where))

    def rows(self) -> list[dict[str, Any]]:
        """Of exact rungs, too: their distance to one device is ten orders of magnitude from their limit."""
        order = {name: at for at, name in enumerate(PRECISIONS)}
        out = []
        for key in sorted(self.shares, key=lambda key: (order.get(key[0], len(order)), key)):
            found = sorted(self.shares[key])
            precision, role, check = key
            out.append(
                {
                    "precision": precision,
                    "of": role,
                    "check": check,
                    "rungs": len(found),
                    "half": found[len(found) // 2][0],
                    "most": found[math.ceil(0.95 * len(found)) - 1][0],
                    "largest": found[-1][0],
                    "where": found[-1][1],
                }
            )
        return out


@dataclass(slots=True)
class Healthy:
    rungs: int = 0
    """Those with an axis on; the singles that they are compared with are not counted."""
    seeds: int = 0
    alarms: list[str] = field(default_factory=list)
    margins: Margins = field(default_factory=Margins)

    def to_json(self) -> dict[str, Any]:
        return {"rungs": self.rungs, "seeds": self.seeds, "margins": self.margins.rows()}


def run(launcher: SharingLauncher, out: Path, *, rungs: int, deepspeed: bool, note: Callable[[str], None]) -> Healthy:
    """As many rungs, in equal parts over the seeds, and the neighbours that come with them. Without ``deepspeed`` the
    stages of zero are left out."""
    found = Healthy()
    for seed, matrix in enumerate(matrices(rungs, deepspeed=deepspeed)):
        folder = out / f"seed{seed}"
        report = ladder.report(matrix, folder, launcher)
        add(found, report, folder, f"seed {seed}")
        raised = [f for f in report["rungs"] if f["status"] not in ("pass", "skip")]
        note(f"seed {seed:<3} {len(report['rungs'])} healthy rungs, {len(raised)} raised something")
    return found


def add(found: Healthy, report: Mapping[str, Any], folder: Path, where: str) -> None:
    rungs = {each["id"]: Rung.from_json(each) for each in stored.read_json(folder / "plan.json")["rungs"]}
    found.seeds += 1
    found.rungs += sum(rung.role is Role.RUNG for rung in rungs.values())
    for each in report["rungs"]:
        if each["status"] not in ("pass", "skip"):
            checks = ", ".join(f"{name} {status}" for name, status in each["checks"].items() if status[0] in "fi")
            found.alarms.append(f"{where}: {each['id']} is {each['status']} without any fault ({checks})")
    for finding in report["findings"]:
        found.margins.add(rungs[finding["rung"]], finding, f"{finding['rung']}, {where}")


def matrices(rungs: int, *, deepspeed: bool) -> Iterator[dict[str, Any]]:
    """One ladder for each seed."""
    pool = random.Random(0).sample(names(deepspeed), len(names(deepspeed)))
    turns = itertools.cycle(pool)
    for seed in range(SEEDS):
        share = rungs * (seed + 1) // SEEDS - rungs * seed // SEEDS
        chosen: dict[str, list[str]] = {"": list(ONCE) if seed == 0 else [], "moe": []}
        train = OPTIMIZERS[seed % len(OPTIMIZERS)]
        for recipe, name in itertools.islice((turn for turn in turns if goes(turn[1], train)), share):
            chosen[recipe].append(name)
        model = MODELS[seed % len(MODELS)]
        yield {
            "name": "healthy",
            "steps": 4,
            "seeds": [seed],
            "options": {**model, "samples": 123},  # the fourth step ends the first epoch with a smaller batch
            "train": train,
            "combine": {"mode": "singles", "include": list(dict.fromkeys(chosen[""]))},
            "also": [
                {
                    "recipe": "moe",
                    "options": {**model, "samples": 123},
                    "combine": {"mode": "singles", "include": list(dict.fromkeys(chosen["moe"]))},
                }
            ],
            "launch": {"cold_twin": False, "deadline": 300.0},
            "blame": {"budget": 0},
        }


def goes(name: str, train: Mapping[str, Any]) -> bool:
    """Torch has no fused SGD for DTensors; the plan refuses it."""
    return not {Axis.FUSED, Axis.TP} <= set(Setting.parse(name)) or train.get("optimizer") != "sgd"


def names(deepspeed: bool) -> list[tuple[str, str]]:
    """(recipe, rung) of every combination with every precision that it can be computed in."""
    found = []
    for recipe, of_recipe in (("", GPT), ("moe", MOE)):
        for name, precision in itertools.product(of_recipe, PRECISIONS):
            zero = Setting.parse(name).get(Axis.ZERO) in ZERO_STAGES
            # Where others are in float64, DeepSpeed's are in float32.
            if not (zero and (precision == "fp32" or not deepspeed)):
                found.append((recipe, name if precision == "fp64" else f"{name}+{precision}"))
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """In Markdown."""
    lines = [
        "| precision | of | check | rungs | half are below | 95 % are below | largest | where |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        shares = " | ".join(f"{row[name]:.2g}" for name in ("half", "most", "largest"))
        lines.append(
            f"| {row['precision']} | {row['of']} | {row['check']} | {row['rungs']} | {shares} | `{row['where']}` |"
        )
    return "\n".join(lines) + "\n"
