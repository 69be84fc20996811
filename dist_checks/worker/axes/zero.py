"""zero: DeepSpeed's engine, which partitions optimizer state, gradients or parameters; or torch's own optimizer.

What is applied to the model is nothing: engine and optimizer are made of the whole model, by ``worker/zero.py``.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from dist_checks.axes import ZERO_STAGES, Axis
from dist_checks.recipes.base import Recipe
from dist_checks.recipes.settings import TrainSettings
from dist_checks.worker.axes.precision import SCALE_POWER
from dist_checks.worker.mesh import World

BUCKET = 1 << 20
"""Elements that DeepSpeed reduces or gathers at a time. Its own default allocates gigabytes."""

NEVER = 1 << 30
"""Steps without an overflow until the loss scale grows: DeepSpeed's step is half as long then (tests/upstream)."""

SHARED_MEMORY = "deepspeed_shm_comm"
"""A helper of DeepSpeed's for inference on CPUs, which it compiles when it starts: nothing that trains calls it."""


def apply(model: nn.Module, recipe: Recipe, world: World) -> nn.Module:
    return model


def stage(world: World) -> int:
    """1, 2 or 3; 0 where the axis is off or torch's own optimizer is its value."""
    value = world.rung.setting.get(Axis.ZERO)
    return int(value) if value in ZERO_STAGES else 0


def partitioned(optimizer: torch.optim.Optimizer, world: World) -> torch.optim.Optimizer:
    """On every rank: the same optimizer, with the state of each parameter on one rank of the replicas only."""
    kind = type(optimizer)
    # Its groups say more than its constructor takes.
    known = {"params", *inspect.signature(kind).parameters}
    groups = [{key: value for key, value in group.items() if key in known} for group in optimizer.param_groups]
    defaults = {key: value for key, value in optimizer.defaults.items() if key in known}
    # The module around it compiles functional optimizers at import, which torch itself warns of.
    from torch.distributed.optim import ZeroRedundancyOptimizer

    return ZeroRedundancyOptimizer(groups, kind, process_group=world.submesh(Axis.DP_REPLICATE).get_group(), **defaults)


def config(world: World, train: TrainSettings) -> dict[str, Any]:
    """What the engine is asked for: DeepSpeed's JSON."""
    precision = world.rung.precision
    return {
        "train_micro_batch_size_per_gpu": 1,  # for its reports of throughput only
        "gradient_accumulation_steps": world.degree(Axis.ACCUM),
        "gradient_clipping": train.clip or 0.0,
        "zero_optimization": {
            "stage": stage(world),
            "reduce_bucket_size": BUCKET,
            "allgather_bucket_size": BUCKET,
            "stage3_prefetch_bucket_size": BUCKET,
            # By default parameters of fewer than 100,000 elements stay whole: all of a small model's.
            "stage3_param_persistence_threshold": 0,
        },
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": precision == "bf16"},
        "fp16": {
            "enabled": precision == "fp16",
            "initial_scale_power": SCALE_POWER,
            "hysteresis": 1,  # of an overflow, lower the scale at once, as GradScaler does
            "loss_scale_window": NEVER,
        },
        "steps_per_print": None,
    }


def engine(model: nn.Module, optimizer: torch.optim.Optimizer, world: World, train: TrainSettings) -> Any:
    """On every rank: a DeepSpeed engine over all ranks of the world, which have joined each other already."""
    import deepspeed
    from deepspeed.accelerator import get_accelerator

    deepspeed.ops.__compatible_ops__[SHARED_MEMORY] = False
    if world.device.type == "cpu" and world.rung.precision == "fp16":
        # It asks for instructions that make fp16 fast. Torch computes in fp16 without them.
        accelerator = get_accelerator()
        accelerator.is_fp16_supported = lambda: True
        accelerator.supported_dtypes = lambda: [torch.float32, torch.bfloat16, torch.float16]
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)
    made, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config(world, train))
    return made
