"""Axes that are configured and silently not applied: most numbers are right, and the job is not what it seems to be."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.rung import Rung
from dist_checks.worker.axes import dp_replicate, precision, tp
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.loop import Trainer
from dist_checks.worker.mesh import World


def never_wrapped(rung: Rung) -> None:
    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        return model

    dp_replicate.apply = apply


def nothing_cut(rung: Rung) -> None:
    def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
        return model

    tp.apply = apply
    tp.loss_context = lambda world: nullcontext()


def one_micro_batch(rung: Rung) -> None:
    right = Trainer.read

    def read(self: Trainer, index: int) -> tuple[int, list[list[int]]]:
        epoch, micro_batches = right(self, index)
        return epoch, [[i for ids in micro_batches for i in ids]]

    Trainer.read = read  # type: ignore[method-assign]  # that is what planting means


def no_autocast(rung: Rung) -> None:
    def autocast(world: World) -> AbstractContextManager[object]:
        return nullcontext()

    precision.autocast = autocast


def whole_norms(rung: Rung) -> None:
    from dist_checks.recipes.gpt import GPTRecipe

    right = GPTRecipe.tensor_parallel_plan

    def plan(self: GPTRecipe, *, sequence_parallel: bool) -> Any:
        return right(self, sequence_parallel=False)

    GPTRecipe.tensor_parallel_plan = plan  # type: ignore[method-assign]


def _fault(id: str, title: str, source: str, axis: Axis, plant: Any) -> Fault:
    return Fault(id=id, title=title, source=source, axes=((axis,),), check="engaged", plant=plant)


FAULTS: Sequence[Fault] = (
    _fault(
        "dp_replicate_off",
        "replicas never wrapped: each trains alone on its own samples",
        "a wrapper that is made and thrown away",
        Axis.DP_REPLICATE,
        never_wrapped,
    ),
    _fault(
        "tp_off",
        "a tensor-parallel plan that matches no module: every rank computes all of it",
        "names that changed with the model",
        Axis.TP,
        nothing_cut,
    ),
    _fault(
        "sp_off",
        "sequence parallelism asked for and norms computed whole",
        "a flag that the plan never reads",
        Axis.SP,
        whole_norms,
    ),
    _fault(
        "accum_off",
        "all micro-batches run as one",
        "accumulation steps that a framework overrides",
        Axis.ACCUM,
        one_micro_batch,
    ),
    _fault(
        "precision_off",
        "autocast never entered: everything in float32",
        "a context manager that is made and not entered",
        Axis.PRECISION,
        no_autocast,
    ),
)
