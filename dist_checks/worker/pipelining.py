"""The training loop of a pipeline: torch's schedule runs forward and backward of a step's micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from dist_checks import pipeline
from dist_checks.axes import Axis
from dist_checks.probe.header import parameters_of
from dist_checks.recipes.base import IGNORE, Batch, Recipe
from dist_checks.recipes.settings import TrainSettings
from dist_checks.worker import data, gradients
from dist_checks.worker.axes import pp, precision, sequence, tp
from dist_checks.worker.loop import Attach, Phase, Trainer
from dist_checks.worker.mesh import World

SCHEDULES: dict[str, type[schedules._PipelineSchedule]] = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "zerobubble": schedules.ScheduleInterleavedZeroBubble,
}


class Stage(PipelineStage):
    """A stage whose passes are computed under autocast and told to the probe."""

    def __init__(self, trainer: PipelineTrainer, module: nn.Module, index: int) -> None:
        world = trainer.world
        super().__init__(
            module,
            index,
            pipeline.stages(world.rung.setting),
            world.device,
            group=world.submesh(Axis.PP).get_group(),
        )
        self.trainer = trainer

    def _compute_outputs(self, *args: Tensor, module: nn.Module, **kwargs: Any) -> Any:
        # Before the first step torch runs each stage once to learn shapes. The probe is told of no forward pass. DDP
        # would take it for one whose gradients are to be reduced, and fail at the second step (tests/upstream).
        module = module.module if isinstance(module, DistributedDataParallel) else module
        with precision.autocast(self.trainer.world):
            return super()._compute_outputs(*args, module=module, **kwargs)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        self.trainer.probe.forward(self.trainer.first + fwd_chunk_id, self.stage_index)
        with precision.autocast(self.trainer.world):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(
        self, bwd_chunk_id: int, loss: Any = None, full_backward: bool = True, last_backward: bool = False
    ) -> None:
        self.trainer.probe.backward(
            self.trainer.first + bwd_chunk_id, self.stage_index, part="B" if full_backward else "I"
        )
        super().backward_one_chunk(bwd_chunk_id, loss, full_backward, last_backward)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, last_backward: bool = False) -> None:
        self.trainer.probe.backward(self.trainer.first + bwd_chunk_id, self.stage_index, part="W")
        super().backward_weight_one_chunk(bwd_chunk_id, last_backward)


class PipelineTrainer(Trainer):
    """On every rank: a step is ``accum`` passes through the schedule, each over ``micro_batches`` pieces of a batch."""

    model: pp.Stages

    def __init__(
        self, *, recipe: Recipe, train: TrainSettings, world: World, attach: Attach, phase: Phase | None = None
    ) -> None:
        super().__init__(recipe=recipe, train=train, world=world, attach=attach, phase=phase)
        setting = self.rung.setting
        self.micro_batches = pipeline.micro_batches(setting)
        largest = min(train.batch, recipe.samples)
        for parts in (self.data_size, self.accum, self.micro_batches):
            largest = -(-largest // parts)
        self.rows = largest
        """Of every micro-batch: stages receive into buffers of one shape, so smaller ones are padded."""
        self.total = 1
        """Targets of the step."""
        self.first = 0
        """Number, in the step, of the first micro-batch of the pass."""
        self.named = parameters_of(self.model)
        self.sums: list[Tensor] = []
        """On the last stage: the loss of each micro-batch, summed over its targets."""
        self.tie_groups = make_tie_groups(self.model.ties, world)
        stages = [Stage(self, module, index) for index, module in self.model.by_index.items()]
        self.is_first = any(stage.is_first for stage in stages)
        self.is_last = any(stage.is_last for stage in stages)
        self.schedule = self.make_schedule(stages)
        if self.scaler is not None:
            # A scaler that has never scaled does not unscale; only the last stage has a loss.
            self.scaler.scale(torch.zeros((), device=world.device))

    def make_schedule(self, stages: list[Stage]) -> Any:
        kind: Any = SCHEDULES[pipeline.schedule(self.rung.setting)]
        several = issubclass(kind, schedules.PipelineScheduleMulti)
        # The loss is a sum over targets already divided by their number: nothing is left to average.
        return kind(stages if several else stages[0], self.micro_batches, loss_fn=self.micro_loss, scale_grads=False)

    # Forward and backward

    def accumulate(
        self, epoch: int, micro_batches: Sequence[Sequence[int]], batches: Sequence[Batch], total: int
    ) -> float | None:
        self.total = total
        loss_sum = 0.0
        for number, (ids, batch) in enumerate(zip(micro_batches, batches, strict=True)):
            self.first = number * self.micro_batches
            loss_sum += self.run_schedule(epoch, ids, batch)
        return loss_sum if self.is_last else None

    def run_schedule(self, epoch: int, ids: Sequence[int], batch: Batch) -> float:
        """Adds the gradient of ``batch``, piece by piece; returns the sum of its loss, on the last stage."""
        pieces = data.micro_batches(ids, self.micro_batches)
        for piece in pieces:
            self.probe.micro_batch(
                piece,
                tokens=sequence.tokens(self.world, batch),
                loss_scale=self.loss_scale * self.loss_parts,
                epoch=epoch,
                padding=self.rows - len(piece),
                later=True,
            )
        padded = self.pad(batch, [len(piece) for piece in pieces])
        self.sums.clear()
        with tp.loss_context(self.world):
            self.schedule.step(
                *([padded.inputs] if self.is_first else []),
                target=torch.stack([padded.inputs, padded.targets], dim=1) if self.is_last else None,
                return_outputs=False,
            )
        # In the first step there is one more: that of the pass in which torch learns shapes.
        return sum(loss.item() for loss in self.sums[-self.micro_batches :])

    def pad(self, batch: Batch, sizes: Sequence[int]) -> Batch:
        """The samples of ``batch``, with rows that have no target behind each micro-batch of ``sizes`` samples."""
        inputs = batch.inputs.new_zeros(self.micro_batches, self.rows, *batch.inputs.shape[1:])
        targets = batch.targets.new_full(inputs.shape, IGNORE)
        start = 0
        for number, size in enumerate(sizes):
            inputs[number, :size] = batch.inputs[start : start + size]
            targets[number, :size] = batch.targets[start : start + size]
            start += size
        return Batch(inputs.flatten(0, 1), targets.flatten(0, 1))

    def micro_loss(self, output: Tensor, target: Tensor) -> Tensor:
        """What the last stage starts backward from. ``target``: inputs and targets, (rows, 2, length)."""
        loss_sum = self.loss_of(output, Batch(target[:, 0], target[:, 1]))
        self.sums.append(loss_sum.detach())
        loss = self.normalise(loss_sum, self.total)
        return loss if self.scaler is None else self.scaler.scale(loss)

    def evaluate(self) -> None:
        """Not here: the stages of a pipeline have buffers for the micro-batches of training."""

    # From gradients to weights

    def reduce(self) -> None:
        super().reduce()
        self.sum_ties()

    @torch.no_grad()
    def sum_ties(self) -> None:
        """Each copy of a tied parameter has the gradient of what its own stage does with it."""
        for name, group in self.tie_groups.items():
            parameter = self.parameter(name)
            if isinstance(parameter, DTensor) and isinstance(parameter.grad, DTensor):
                # That of an embedding is whole on every rank of tp, that of the head is cut like the head.
                parameter.grad = parameter.grad.redistribute(placements=parameter.placements)
            gradient = parameter.grad
            assert gradient is not None, name
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            # Of a copy: gloo reduces a strided view wrongly.
            total = local.contiguous().clone()
            dist.all_reduce(total, group=group)
            local.copy_(total)

    def parameter(self, name: str) -> nn.Parameter:
        """Of this rank, by its name in the single."""
        return self.named[name]

    def total_norm(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """Over all stages; a tied parameter counts where its first copy is."""
        copies = {self.parameter(name) for name in self.model.copies}
        own = [parameter for parameter in parameters if parameter not in copies]
        square = gradients.total_norm(own).square()
        dist.all_reduce(square, group=self.world.submesh(Axis.PP).get_group())
        return square.sqrt()


def make_tie_groups(ties: Sequence[pp.Tie], world: World) -> dict[str, dist.ProcessGroup]:
    """On every rank: the ranks that hold a copy of each tied parameter, by its name here."""
    groups: dict[str, dist.ProcessGroup] = {}
    for tie in ties:
        # Every rank has to make every group, in the same order.
        for line in world.layout.groups(Axis.PP):
            group = dist.new_group([line[at] for at in tie.names])
            if world.rank in line and (name := tie.names.get(line.index(world.rank))):
                groups[name] = group
    return groups
