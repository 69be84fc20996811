"""O19: the optimizer was made before the model was sharded, and holds parameters that nobody trains."""

from __future__ import annotations

import torch
from torch import nn

from dist_checks.axes import Axis
from dist_checks.recipes.base import Recipe
from dist_checks.recipes.settings import TrainSettings, build_optimizer
from dist_checks.rung import Rung
from dist_checks.worker.faults.base import Fault


def plant(rung: Rung) -> None:
    def optimizer(self: Recipe, model: nn.Module, train: TrainSettings) -> torch.optim.Optimizer:
        return build_optimizer([nn.Parameter(p.detach().clone()) for p in model.parameters()], train)

    if rung.setting.degree(Axis.DP_SHARD) > 1:
        Recipe.optimizer = optimizer  # type: ignore[method-assign]  # that is what planting means


FAULT = Fault(
    id="O19",
    title="an optimizer made before sharding: gradients come, weights never move",
    source="huggingface/accelerate#3256, #2665",
    axes=((Axis.DP_SHARD,),),
    check="updates",
    plant=plant,
    planted_in={"axes": {"dp_shard": 3, "accum": 5}},
    step=0,
)
