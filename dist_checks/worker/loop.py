"""The training loop of one rank, in small steps that are looked up when called, so that each can be replaced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dist_checks import pipeline
from dist_checks.axes import Axis
from dist_checks.probe.holding import Holding
from dist_checks.probe.probe import Probe
from dist_checks.recipes.base import Batch, Recipe
from dist_checks.recipes.settings import TrainSettings
from dist_checks.rung import Role
from dist_checks.worker import axes, checkpoint, data, gradients, mesh, rng
from dist_checks.worker.alone import bundle
from dist_checks.worker.axes import accum, cp, ep, fused, pp, precision, sequence, sp, tp
from dist_checks.worker.axes import compile as compiling
from dist_checks.worker.mesh import World


class Attach(Protocol):
    """Makes the probe of a rung."""

    def __call__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        blocks: Mapping[str, nn.Module],
        tied: Mapping[str, str],
        holding: Holding | None = None,
        first: int = 0,
    ) -> Probe:
        """``model`` has every axis applied, ``blocks`` are named in forward order; see :meth:`Probe.attach`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The steps of a run that these processes are for."""

    stop: int
    """The first that they do not run."""
    load: Path | None = None
    """A checkpoint to go on from."""
    save: Path | None = None
    """Where one is left in the end."""


class Trainer:
    """On every rank: builds model and optimizer for the rung, trains, and tells the probe what happens."""

    payload: Mapping[str, Any] = {}
    """What the rank was told: see :func:`dist_checks.worker.entry.main`."""

    def __init__(
        self, *, recipe: Recipe, train: TrainSettings, world: World, attach: Attach, phase: Phase | None = None
    ) -> None:
        self.recipe, self.train, self.world = recipe, train, world
        self.norm = 0.0
        self.phase = phase or Phase(stop=world.rung.steps)
        self.next_step = 0
        self.loader = data.Loader(recipe.samples, train.batch)
        self.rung = world.rung
        self.data_size = world.layout.data_size
        self.loss_parts = world.layout.loss_parts
        self.accum = self.rung.setting.degree(Axis.ACCUM)
        data.check(recipe.samples, train.batch, self.data_size, self.accum * pipeline.micro_batches(self.rung.setting))

        rng.seed_model(self.rung)
        model = recipe.model()
        blocks, routers = recipe.blocks(model), recipe.routers(model)
        self.experts = ep.experts(model, recipe, world)
        self.build(model)
        self.full_rates = [group["lr"] for group in self.optimizer.param_groups]
        self.scaler = self.make_scaler()
        rng.seed_rank(world)
        self.keeper = bundle.Keeper(self)
        self.micro_losses: list[float] = []
        """Of each micro-batch of the step, per target; empty where a schedule runs them."""
        if self.phase.load is not None:
            self.load(self.phase.load)
        self.probe = attach(
            self.model,
            self.optimizer,
            blocks=pp.held(self.model, blocks),
            tied=pp.copies(self.model),
            holding=self.holding(),
            first=self.next_step,
        )
        if self.phase.load is not None:
            self.probe.loaded(**self.position())
        if Axis.COMPILE not in self.rung.setting:  # hooks inside of a graph break it
            self.probe.routing(routers, recipe.chosen)

    # What is trained: hooks for frameworks that own a part of it

    def build(self, model: nn.Module) -> None:
        """Sets ``self.model``, with every axis applied, and ``self.optimizer``."""
        self.model = axes.apply_all(model, self.recipe, self.world)
        self.optimizer = self.make_optimizer()

    def make_optimizer(self) -> torch.optim.Optimizer:
        optimizer = self.recipe.optimizer(self.model, self.train)
        fused.choose_kernels(optimizer, self.world)
        return optimizer

    def stepped(self) -> torch.optim.Optimizer:
        """The optimizer that has the state of what it steps."""
        return self.optimizer

    def make_scaler(self) -> torch.amp.GradScaler | None:
        return precision.make_scaler(self.world)

    def holding(self) -> Holding | None:
        """Where the probe finds weights, gradients and state; None where the probe can tell by itself."""
        return None

    def parameters(self) -> list[nn.Parameter]:
        """What the optimizer steps, with the gradients that are clipped."""
        return list(self.model.parameters())

    def autocast(self) -> AbstractContextManager[object]:
        """Around each forward pass and its loss."""
        return precision.autocast(self.world)

    def run(self) -> None:
        if self.rung.role is Role.SINGLE and self.world.layout.world_size == 1:
            self.record_samples()
        while self.next_step < self.phase.stop:
            self.step(self.next_step)
            self.next_step += 1
        if self.phase.save is not None:
            self.probe.saved(**self.position())
            self.save(self.phase.save)
        elif self.recipe.held_out >= self.data_size:  # all ranks run the same number of forward passes
            self.evaluate()
        self.probe.close()

    def step(self, index: int) -> None:
        """One optimizer step."""
        epoch, micro_batches = self.read(self.loader.next())
        batches = [self.collate(ids) for ids in micro_batches]
        targets = sum(batch.count for batch in batches)
        total = self.count_targets(targets)
        self.set_learning_rate(index)
        self.optimizer.zero_grad()
        self.keeper.before()
        loss_sum = self.accumulate(epoch, micro_batches, batches, total)
        self.reduce()
        loss_scale = self.loss_scale
        self.probe.gradients(loss_scale=loss_scale)
        self.unscale()
        self.clip()
        self.keeper.after(index, loss_sum, targets)
        skipped = self.update()
        self.probe.step(
            loss_sum=loss_sum,
            targets=targets,
            printed_loss=None if loss_sum is None else self.mean_loss(loss_sum, total),
            loss_scale=loss_scale if self.scales_loss else None,
            skipped=skipped,
            micro_losses=self.micro_losses,
        )

    # What new processes go on from

    def save(self, folder: Path) -> None:
        checkpoint.save(self, folder)

    def load(self, folder: Path) -> None:
        """Weights, buffers, state of the optimizer and of the loss scaler, random numbers, and :meth:`progress`."""
        checkpoint.load(self, folder)

    def progress(self) -> dict[str, Any]:
        """How far the run is: the next step, and where the loader is."""
        return {"step": self.next_step, "loader": self.loader.state_dict()}

    def load_progress(self, progress: Mapping[str, Any]) -> None:
        self.next_step = progress["step"]
        self.loader.load_state_dict(progress["loader"])

    def position(self) -> dict[str, Any]:
        """What the probe is told where a run is saved and where it goes on."""
        return {
            "epoch": self.loader.epoch,
            "batch": self.loader.at,
            "loss_scale": self.loss_scale if self.scales_loss else None,
        }

    # What is read

    def read(self, index: int) -> tuple[int, list[list[int]]]:
        """(epoch, the ids of each micro-batch) that this rank reads of batch ``index``, counted over epochs."""
        epoch, ids = data.read(index, self.recipe.samples, self.train.batch, self.rung.seed)
        mine = data.part(ids, self.world.data_rank, self.data_size)
        return epoch, data.micro_batches(mine, self.accum)

    def collate(self, ids: Sequence[int]) -> Batch:
        """This rank's tokens of the samples ``ids``."""
        return cp.part(self.recipe.collate(ids), self.world).to(self.world.device)

    def count_targets(self, targets: int) -> int:
        """Targets of the whole step, over its micro-batches, data ranks and parts of the sequence: what the loss is
        divided by."""
        return round(mesh.sum_over_parts(self.world, targets))

    # Forward and backward

    def accumulate(
        self, epoch: int, micro_batches: Sequence[Sequence[int]], batches: Sequence[Batch], total: int
    ) -> float | None:
        """Adds up the gradients of all micro-batches of a step; returns the sum of their losses over targets, None on
        a rank that has no loss."""
        sums = [
            self.micro_step(epoch, ids, batch, total, last=number == len(batches))
            for number, (ids, batch) in enumerate(zip(micro_batches, batches, strict=True), start=1)
        ]
        self.micro_losses = [each / batch.count for each, batch in zip(sums, batches, strict=True) if batch.count]
        return sum(sums)

    def micro_step(self, epoch: int, ids: Sequence[int], batch: Batch, total: int, last: bool) -> float:
        """Adds the gradient of one micro-batch; returns the sum of its loss over targets."""
        self.probe.micro_batch(
            ids,
            tokens=sequence.tokens(self.world, batch),
            loss_scale=self.loss_scale * self.loss_parts,
            epoch=epoch,
        )
        with accum.reduction(self.model, last), tp.loss_context(self.world), cp.context(self.world):
            loss_sum = self.forward(batch)
            self.backward(self.normalise(loss_sum, total))
        return loss_sum.item()

    def forward(self, batch: Batch) -> Tensor:
        """The loss summed over the targets of ``batch``, a plain scalar tensor."""
        with self.autocast():
            output = self.model(batch.inputs)
        return self.loss_of(output, batch)

    def loss_of(self, output: Tensor, batch: Batch) -> Tensor:
        """The loss summed over the targets of ``batch``, a plain scalar tensor."""
        with self.autocast():
            loss_sum, counted = self.recipe.loss(output, batch)
        if counted != batch.count:
            raise ValueError(
                f"recipe {self.recipe.name}: loss() counted {counted} targets, the batch has {batch.count}"
            )
        return tp.whole(loss_sum)

    def normalise(self, loss_sum: Tensor, total: int) -> Tensor:
        """This rank's share of the mean over all targets, times the ranks over which gradients are averaged."""
        return loss_sum * (self.loss_parts / total)

    def backward(self, loss: Tensor) -> None:
        torch.autograd.backward(loss if self.scaler is None else self.scaler.scale(loss))

    # From gradients to weights

    def reduce(self) -> None:
        """What is left to add up when backward has reduced over data ranks."""
        sp.sum_partial(self.model.parameters())
        ep.reduce(self.experts.values(), self.world)

    @property
    def scales_loss(self) -> bool:
        return self.scaler is not None

    @property
    def loss_scale(self) -> float:
        """By how much the loss scaler makes gradients larger; 1 without one."""
        return 1.0 if self.scaler is None else self.scaler.get_scale()

    def unscale(self) -> None:
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)

    def clip(self) -> None:
        parameters = self.parameters()
        norm = self.total_norm(parameters)
        self.norm = norm.item()
        if self.train.clip is not None:
            gradients.clip(parameters, self.train.clip, norm)
        self.probe.norm(used=norm.item(), limit=self.train.clip, printed=self.printed_norm(norm))

    def total_norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """The 2-norm of the full gradient, a scalar, the same on all ranks."""
        return gradients.total_norm(parameters)

    def printed_norm(self, norm: Tensor) -> float:
        """What a user of this loop would see."""
        return norm.item()

    def update(self) -> bool:
        """The optimizer's step; True where the loss scaler left it out because a gradient was not finite."""
        if self.scaler is None:
            self.optimizer.step()
            return False
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.scaler.get_scale() < before

    def set_learning_rate(self, index: int) -> None:
        """Before step ``index``: linear warm-up, then constant."""
        factor = min(1.0, (index + 1) / (self.train.warmup + 1))
        for group, rate in zip(self.optimizer.param_groups, self.full_rates, strict=True):
            group["lr"] = rate * factor

    def mean_loss(self, loss_sum: float, total: int) -> float:
        """What a user of this loop would see: the loss per target of the whole step."""
        return mesh.sum_over_parts(self.world, loss_sum) / total

    # After the last step

    @torch.no_grad()
    def evaluate(self) -> None:
        """The loss over samples that are held out, in one forward pass; their number divides no world."""
        ids = data.held_out(self.recipe.samples, self.recipe.held_out, self.world.data_rank, self.data_size)
        batch = self.collate(ids)
        self.model.eval()
        with tp.loss_context(self.world), cp.context(self.world), compiling.paused():
            loss_sum = self.forward(batch).item()
        self.probe.evaluation(
            ids,
            loss_sum=loss_sum,
            targets=batch.count,
            printed_loss=self.mean_loss(loss_sum, self.count_targets(batch.count)),
        )

    # What only a single records

    def record_samples(self) -> None:
        """Before the first step: the share that each sample of its batch has in the gradient, alone."""
        _, [ids] = self.read(0)
        total = self.collate(ids).count
        # Samples come one by one, for which a second graph would be compiled.
        with rng.kept(self.world.device), compiling.paused():
            for sample in ids:
                self.optimizer.zero_grad()
                self.backward(self.normalise(self.forward(self.collate([sample])), total))
                self.probe.sample_gradient(sample, loss_scale=self.loss_scale)
            for term in self.terms(ids):
                self.optimizer.zero_grad()
                self.backward(self.normalise(self.terms(ids)[term], total))
                self.probe.term_gradient(term, loss_scale=self.loss_scale)
        self.optimizer.zero_grad()

    def terms(self, ids: Sequence[int]) -> dict[str, Tensor]:
        """What the recipe adds to the loss of the targets of these samples."""
        batch = self.collate(ids)
        with self.autocast():
            return self.recipe.terms(self.model(batch.inputs), batch)
