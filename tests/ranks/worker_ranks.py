"""Ranks for tests: processes forked from a server that has torch imported, and a probe that keeps full tensors."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dist_checks.axes import Setting
from dist_checks.probe.probe import Probe
from dist_checks.recipes import TrainSettings, load
from dist_checks.rung import Role, Rung
from dist_checks.worker import mesh
from dist_checks.worker.loop import Trainer

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["dist_checks.worker.entry"])


def rung(axes: Mapping[str, Any], *, precision: str = "fp64", steps: int = 8, seed: int = 0) -> Rung:
    setting = Setting(axes)
    role = Role.RUNG if setting.structural else Role.SINGLE
    return Rung(id=setting.name, role=role, setting=setting, precision=precision, seed=seed, steps=steps)


class Keeper(Probe):
    """Keeps what the loop reports; every full gradient, on every rank, by collectives that only a test may use."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.kept: dict[str, list[Any]] = {
            key: [] for key in ("gradients", "weights", "losses", "norms", "ids", "scales", "skipped", "samples")
        }
        self.micro: list[dict[str, Any]] = []

    def named(self) -> dict[str, nn.Parameter]:
        return {name.removeprefix("module."): p for name, p in self.model.named_parameters()}

    def micro_batch(self, ids: Any, tokens: Any = None, loss_scale: float = 1.0, epoch: int = 0) -> None:
        self.micro.append({"ids": list(ids), "tokens": tokens, "loss_scale": loss_scale, "epoch": epoch})

    def sample_gradient(self, sample_id: int, loss_scale: float = 1.0) -> None:
        gradients = {n: full(p.grad) / loss_scale for n, p in self.named().items() if p.grad is not None}
        self.kept["samples"].append((sample_id, gradients))

    def gradients(self, loss_scale: float = 1.0) -> None:
        for name, p in self.named().items():
            assert p.grad is not None, name
        self.kept["gradients"].append({n: full(p.grad) / loss_scale for n, p in self.named().items()})

    def norm(self, used: float, limit: float | None, printed: float) -> None:
        self.kept["norms"].append(used)

    def step(
        self,
        loss_sum: float,
        targets: int,
        printed_loss: float | None = None,
        loss_scale: float | None = None,
        skipped: bool = False,
        micro_losses: Iterable[float] = (),
    ) -> None:
        self.kept["weights"].append({n: full(p) for n, p in self.named().items()})
        self.kept["losses"].append(printed_loss)
        self.kept["scales"].append(loss_scale)
        self.kept["skipped"].append(skipped)
        self.kept["ids"].append(self.micro)
        self.micro = []


def full(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def keep(payload: Mapping[str, Any]) -> dict[str, list[Any]]:
    """On every rank: train with a Keeper."""
    torch.set_num_threads(1)
    kept: list[Keeper] = []

    def attach(model: nn.Module, optimizer: object, **told: object) -> Probe:
        kept.append(Keeper(model))
        return kept[0]

    world = mesh.start(Rung.from_json(payload["rung"]), "cpu")
    Trainer(
        recipe=load("gpt", payload.get("options")),
        train=TrainSettings.from_json(payload.get("train", {})),
        world=world,
        attach=attach,
    ).run()
    mesh.stop(world)
    return kept[0].kept


def _rank(function: Any, payload: Mapping[str, Any], folder: Path, rank: int, size: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        mesh.INIT_METHOD: f"file://{folder}/store",
    }
    try:
        torch.save(function(payload), folder / f"rank{rank}.pt")
    except BaseException:
        (folder / f"rank{rank}.error").write_text(traceback.format_exc())
        raise


def run(function: Any, payload: Mapping[str, Any], folder: Path) -> list[Any]:
    """What ``function(payload)`` returned on each rank of the payload's rung."""
    folder.mkdir(parents=True, exist_ok=True)
    size = Rung.from_json(payload["rung"]).layout.world_size
    processes = [
        _CONTEXT.Process(target=_rank, args=(function, payload, folder, rank, size), daemon=True)
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    errors = [path.read_text() for path in sorted(folder.glob("rank*.error"))]
    assert not errors, "\n".join(errors)
    assert [process.exitcode for process in processes] == [0] * size
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(size)]
