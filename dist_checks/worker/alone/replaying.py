"""Runs a saved step again by itself: first as it was, then watched, then in float32, then without some samples."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dist_checks.axes import Setting
from dist_checks.probe.probe import Probe
from dist_checks.recipes import TrainSettings
from dist_checks.recipes import load as load_recipe
from dist_checks.rung import Rung
from dist_checks.worker import mesh, trainers
from dist_checks.worker.alone import bundle
from dist_checks.worker.alone.watching_numbers import Numbers
from dist_checks.worker.loop import Trainer


def main(payload: Mapping[str, Any]) -> None:
    """In one process: ``{"bundle": str, "folder": str, "without": [ids]}``, optional is ``fault``; what came of it is
    written to ``answer.json``. Raises ValueError where the bundle cannot be used."""
    from dist_checks.worker.entry import plant

    saved = bundle.load(Path(payload["bundle"]))
    rung = Rung.from_json(saved["rung"])
    if payload.get("fault"):
        plant(payload["fault"], rung)
    without = [int(id) for id in payload.get("without") or ()]
    plain = step(saved, rung)
    usual = saved.get("usual")
    said = {
        "step": saved["step"],
        "ids": [id for ids in saved["ids"] for id in ids],
        "rung": rung.id,
        "precision": rung.precision,
        "then": [saved["loss_sum"], saved["norm"]],
        "now": plain["numbers"],
        "targets": plain["targets"],
        "same": [_bits(x) for x in (saved["loss_sum"], saved["norm"])] == [_bits(x) for x in plain["numbers"]],
        "usual": usual,
        "each": each_alone(saved, rung) if usual else None,
        # What is finite has no first operation that is not.
        "watched": None if usual else step(saved, rung, watched=True),
        "fp32": None if usual else step(saved, replace(rung, precision="fp32", setting=Setting()), watched=True),
        "without": step(saved, rung, without=without, watched=True) | {"ids": without} if without else None,
    }
    folder = Path(payload["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "answer.json").write_text(json.dumps(said), encoding="utf-8")


def step(saved: Mapping[str, Any], rung: Rung, without: Sequence[int] = (), watched: bool = False) -> dict[str, Any]:
    """``{numbers: [loss sum, gradient norm], targets, first, nan, largest}``; see :class:`Numbers`."""
    trainer = _trainer(saved, rung)
    torch.set_rng_state(saved["rng"])
    random.setstate(saved["python"])
    kept = [left for ids in saved["ids"] if (left := [id for id in ids if id not in without])]
    batches = [trainer.collate(ids) for ids in kept]
    total = sum(batch.count for batch in batches)
    trainer.optimizer.zero_grad()
    numbers = Numbers(trainer.model) if watched else None
    # Without its own check, which sees NaN only and raises: Numbers looks at infinity as well.
    noted = torch.autograd.set_detect_anomaly(watched, check_nan=False)
    with noted, numbers or nullcontext():
        loss_sum = trainer.accumulate(0, kept, batches, total)
    if numbers is not None:
        numbers.remove()
    trainer.unscale()
    norm = trainer.total_norm(trainer.parameters()).item()
    numbers_of = {"numbers": [loss_sum, norm], "targets": total}
    found: dict[str, Any] = {**numbers_of, "first": None, "nan": None, "largest": []}
    if numbers is not None:
        top = sorted(numbers.largest.items(), key=lambda each: -each[1])[:8]
        found |= {"first": numbers.first, "nan": numbers.nan, "largest": [[name, value] for name, value in top]}
    return found


def each_alone(saved: Mapping[str, Any], rung: Rung) -> list[list[float]]:
    """``[id, loss per target]`` of every sample of the step, the highest loss first."""
    trainer = _trainer(saved, rung)
    found = []
    for id in (id for ids in saved["ids"] for id in ids):
        torch.set_rng_state(saved["rng"])
        random.setstate(saved["python"])
        batch = trainer.collate([id])
        with torch.no_grad():
            found.append([id, trainer.forward(batch).item() / max(1, batch.count)])
    return sorted(found, key=lambda each: -each[1])


def _trainer(saved: Mapping[str, Any], rung: Rung) -> Trainer:
    recipe = load_recipe(str(saved["recipe"]), saved["options"])
    world = mesh.start(rung, "cpu")
    torch.set_num_threads(1)
    made = trainers.choose(world)(
        recipe=recipe,
        train=TrainSettings.from_json(saved["train"]),
        world=world,
        attach=lambda *args, **fields: Probe(),
    )
    made.payload = {"single": saved["single"]}
    if rung.role == "overfit":
        made.model.eval()
    made.model.load_state_dict({**saved["weights"], **saved["buffers"]}, strict=False)
    if made.scaler is not None:
        made.scaler = torch.amp.GradScaler("cpu", init_scale=saved["loss_scale"])
        made.scaler.scale(torch.zeros(1))
    return made


def _bits(value: float | None) -> bytes:
    """Of a number; every NaN is the same."""
    if value is None:
        return b""
    return b"nan" if math.isnan(value) else struct.pack("d", value)
