"""What a rank's process runs: one rung from its payload to its trace, or the description of a recipe."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers and DTensor import it at first use: in a fork server it is paid for once

import dist_checks.probe.recorder
import dist_checks.recipes.moe  # noqa: F401  # likewise
from dist_checks.axes import Axis
from dist_checks.probe import record as recorded
from dist_checks.probe.ledger import open_for_worker
from dist_checks.probe.probe import Probe
from dist_checks.probe.record import Record
from dist_checks.recipes import Recipe, TrainSettings, load
from dist_checks.rung import Role, Rung
from dist_checks.trace import Writer
from dist_checks.worker import mesh, trainers, watching
from dist_checks.worker.axes import compile
from dist_checks.worker.loop import Phase

DESCRIPTION = "recipe.json"
FRAMEWORKS = ("deepspeed",)
"""What some values of some axes need besides torch."""


def main(payload: Mapping[str, Any]) -> None:
    """On every rank: train the rung of ``payload`` and leave its trace in ``payload["folder"]``.

    ``{"rung": Rung as JSON, "folder": str, "recipe": "gpt", "options": {}, "train": {}}``; optional are ``device``
    (``cpu`` or ``cuda``), ``fault``, the id of a bug to plant, ``env``, the names of environment variables whose
    values are recorded, and ``phase``, {"stop", "load", "save"}, of a rung that resumes.
    Raises ValueError where the rung cannot be run.
    """
    rung, folder = Rung.from_json(payload["rung"]), Path(payload["folder"])
    ledger = open_for_worker(folder, int(os.environ.get("RANK", "0")))
    watching.start(int(os.environ.get("RANK", "0")), ledger)
    try:
        _train(payload, rung, folder)
    except BaseException:
        with suppress(OSError):
            ledger.read()  # what this rank has called explains what the others wait for
        raise
    ledger.end()
    mesh.leave()
    ledger.left()


def _train(payload: Mapping[str, Any], rung: Rung, folder: Path) -> None:
    if "fault" in payload:
        plant(payload["fault"], rung)
    recipe = load(payload["recipe"], payload.get("options"))
    train = TrainSettings.from_json(payload.get("train", {}))
    try:
        world = mesh.start(rung, payload.get("device"))
    except mesh.WrongWorld:
        claim(Path(payload["folder"]), rung)
        raise
    if world.device.type == "cpu":
        torch.set_num_threads(1)  # ranks that share a machine starve each other with more
    header = {
        "rung": rung.id,
        "world_size": world.layout.world_size,
        "device": str(world.device),
        "device_id": mesh.device_id(world.device) or str(world.device),
        "options": dict(payload.get("options") or {}),
        "train": asdict(train),
        "coordinates": {axis.value: at for axis, at in world.layout.coordinates(world.rank).items()},
    }
    # Under a dispatch mode nothing is compiled; what the model narrows is known from the single that is not.
    record = replace(
        _recorded(payload, rung),
        narrowing=rung.role is Role.SINGLE and Axis.COMPILE not in rung.setting,
        env=tuple(payload.get("env") or ()),
    )
    attach = partial(Probe.attach, folder=folder, rank=world.rank, header=header, record=record)
    trainer = trainers.choose(world)(
        recipe=recipe,
        train=train if rung.role is not Role.OVERFIT else replace(train, weight_decay=0.0),
        world=world,
        attach=attach,
        phase=phase_of(payload, rung),
    )
    trainer.payload = payload
    trainer.run()
    mesh.stop(world)


def phase_of(payload: Mapping[str, Any], rung: Rung) -> Phase:
    """The steps that these processes run: all of them, unless ``payload["phase"]`` says otherwise."""
    given = payload.get("phase") or {}
    paths = {name: Path(given[name]) for name in ("load", "save") if given.get(name)}
    return Phase(stop=given.get("stop", rung.steps), **paths)


def claim(folder: Path, rung: Rung) -> None:
    """Say who this process takes itself for, where that makes the rung impossible: the judge is to see it."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    here = {"rung": rung.id, "world_size": size, "host": socket.gethostname(), "pid": os.getpid()}
    Writer(folder, int(os.environ.get("RANK", "0")), here).abandon()


def _recorded(payload: Mapping[str, Any], rung: Rung) -> Record:
    if rung.role is Role.OVERFIT:
        return recorded.OVERFIT
    return recorded.LEARN if rung.is_zero else Record(every=int(payload.get("record_every", 1)))


def plant(fault: str, rung: Rung) -> None:
    """Patch one bug in. The faults are imported by whoever wants one, by nobody else."""
    from dist_checks.worker import faults

    faults.plant(fault, rung)


def catalogue(payload: Mapping[str, Any]) -> None:
    """In one process: write what is known of every fault to ``catalogue.json`` in ``payload["folder"]``."""
    from dist_checks.worker import faults

    rows = [
        fault.to_json() | {"missing": missing(fault.needs, {axis for each in fault.axes for axis in each})}
        for fault in faults.FAULTS
    ]
    (Path(payload["folder"]) / "catalogue.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def missing(packages: Iterable[str], axes: Container[Axis]) -> list[str]:
    """What this machine lacks of what a fault needs, in words."""
    lacking = [f"{name} is not installed" for name in packages if find_spec(name) is None]
    reason = compile.missing() if Axis.COMPILE in axes else ""
    return lacking + ([f"compile {reason}"] if reason else [])


def describe(payload: Mapping[str, Any]) -> None:
    """In one process: write what the plan and the judge need to know of a recipe to ``recipe.json`` in the folder.

    ``{"folder": str, "recipe": "gpt", "options": {}}``; optional is ``custom``, other options by name.
    """
    if "fault" in payload:
        from dist_checks.worker import faults

        faults.find(payload["fault"])
    description = _described(payload) | {
        "missing": {axis: reason for axis, reason in ((Axis.COMPILE.value, compile.missing()),) if reason},
        "frameworks": [name for name in FRAMEWORKS if importlib.util.find_spec(name) is not None],
        "accelerators": torch.accelerator.device_count() if torch.accelerator.is_available() else 0,
        "custom": {},
    }
    for name, options in payload.get("custom", {}).items() if "recipe" in payload else ():
        try:
            description["custom"][name] = _of_recipe(load(payload["recipe"], options))
        except ValueError as error:
            raise ValueError(f"custom.{name}: {error}") from error
    folder = Path(payload["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n")


def _described(payload: Mapping[str, Any]) -> dict[str, Any]:
    if "command" in payload:  # what it trains is not known before it does
        return {"name": payload["command"]["name"], "command": payload["command"]}
    return _of_recipe(load(payload["recipe"], payload.get("options")))


def _of_recipe(recipe: Recipe) -> dict[str, Any]:
    model = recipe.model()
    experts = recipe.experts(model)
    return {
        "name": recipe.name,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "samples": recipe.samples,
        "held_out": recipe.held_out,
        "classes": recipe.classes,
        "starts_trained": recipe.starts_trained,
        "next_token": recipe.next_token,
        "spares_norms": recipe.spares_norms,
        "mixture": dict(recipe.mixture) if recipe.mixture else None,
        "blocks": list(recipe.blocks(model)),
        "divisors": recipe.divisors(),
        "lacking": recipe.lacking(),
        "experts": [f"{path}.{name}" for path, module in experts.items() for name, _ in module.named_parameters()],
        "stages": recipe.most_stages,
        "dropout": recipe.dropout,
        "masks_alike": list(recipe.masks_alike),
    }
