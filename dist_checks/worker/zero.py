"""The loops of ZeRO: DeepSpeed's engine, which reduces, scales, clips and steps by itself; and torch's optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dist_checks.probe.extents import Part
from dist_checks.probe.zero import ZeroHolding
from dist_checks.worker import rng
from dist_checks.worker.axes import precision, zero
from dist_checks.worker.loop import Trainer

TAG = "saved"
"""What DeepSpeed calls the only checkpoint of a folder."""


class RedundancyTrainer(Trainer):
    """DDP, and an optimizer that steps a part of the parameters on each rank and hands them round."""

    def make_optimizer(self) -> torch.optim.Optimizer:
        return zero.partitioned(super().make_optimizer(), self.world)

    def stepped(self) -> torch.optim.Optimizer:
        inner: torch.optim.Optimizer = self.optimizer.optim  # type: ignore[attr-defined]  # of ZeroRedundancyOptimizer
        return inner


class ZeroTrainer(Trainer):
    """On every rank. Clipping, loss scaling and the accumulation of gradients are DeepSpeed's own."""

    engine: Any

    def build(self, model: nn.Module) -> None:
        initial = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        super().build(model)
        if self.narrow:
            precision.steady_norms(self.model, self.world.device)
        self.model = self.engine = zero.engine(self.model, self.optimizer, self.world, self.train)
        if self.narrow:
            self.restore(initial)

    @property
    def narrow(self) -> bool:
        """The model itself has 16 bits."""
        return self.rung.precision in ("bf16", "fp16")

    @torch.no_grad()
    def restore(self, initial: dict[str, Tensor]) -> None:
        """DeepSpeed rounds the model to 16 bits, and then copies that into the float32 weights which it trains: put the
        numbers back that every rung starts from, as it does itself when it loads a checkpoint."""
        for name, part in ZeroHolding(self.engine).masters():
            part.local.copy_(_piece(initial[name], part))

    def save(self, folder: Path) -> None:
        """DeepSpeed's own checkpoint: each rank leaves a file of its partitions."""
        self.engine.save_checkpoint(str(folder), tag=TAG)
        own = {"progress": self.progress(), "random": rng.state(self.world.device)}
        torch.save(own, _own(folder, self.world.rank))

    def load(self, folder: Path) -> None:
        path, _ = self.engine.load_checkpoint(str(folder), tag=TAG)
        if path is None:
            raise ValueError(f"DeepSpeed found no checkpoint in {folder}")
        own = torch.load(_own(folder, self.world.rank))
        self.load_progress(own["progress"])
        rng.restore(own["random"], self.world.device)

    def autocast(self) -> AbstractContextManager[object]:
        return nullcontext()

    def make_scaler(self) -> torch.amp.GradScaler | None:
        return None

    @property
    def scales_loss(self) -> bool:
        return self.rung.precision == "fp16"

    @property
    def loss_scale(self) -> float:
        return float(getattr(self.engine.optimizer, "loss_scale", 1.0))  # without partitions there may be none

    def micro_step(self, epoch: int, ids: Sequence[int], batch: Any, total: int, last: bool) -> float:
        loss_sum = super().micro_step(epoch, ids, batch, total, last)
        if not last:
            self.engine.step()  # counts; the last one of a step is that of update()
        return loss_sum

    def normalise(self, loss_sum: Tensor, total: int) -> Tensor:
        """DeepSpeed divides by the number of micro-batches as well."""
        return super().normalise(loss_sum, total) * self.accum

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss)

    def clip(self) -> None:
        """Inside the engine's step."""

    def update(self) -> bool:
        self.engine.step()
        norm = self.engine.get_global_grad_norm()
        if norm is not None:
            self.probe.norm(used=float(norm), limit=self.train.clip, printed=float(norm))
        return not self.engine.was_step_applied()


def _own(folder: Path, rank: int) -> Path:
    """Where a rank leaves what DeepSpeed does not know of."""
    return folder / f"rank-{rank:05d}.pt"


def _piece(full: Tensor, part: Part) -> Tensor:
    (flat,) = part.extent.flats
    return full.reshape(-1)[flat.start : flat.stop]
