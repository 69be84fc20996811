"""Bugs to plant: one file a fault, one line a fault in FAULTS."""

from __future__ import annotations

from dist_checks.rung import Rung
from dist_checks.worker.faults import (
    barrier_on_rank_0,
    batch_more,
    bit_flipped,
    checkpointing_not_active,
    clip_before_unscale,
    ep_ignored,
    expert_gradients_undivided,
    gradient_scaled,
    head_zeroed,
    last_micro_batch_unreduced,
    local_norm,
    masks_drawn_again,
    mean_of_means,
    member_skips,
    norm_gradients_not_summed,
    other_branch,
    own_initial_weights,
    parameter_replaced,
    partition_summed,
    partitions_not_gathered,
    rank_sleeps,
    samples_by_world_rank,
    shapes_differ,
    zero_stage_lowered,
)
from dist_checks.worker.faults.base import Fault

FAULTS: tuple[Fault, ...] = (
    mean_of_means.FAULT,
    last_micro_batch_unreduced.FAULT,
    parameter_replaced.FAULT,
    own_initial_weights.FAULT,
    local_norm.FAULT,
    norm_gradients_not_summed.FAULT,
    samples_by_world_rank.FAULT,
    expert_gradients_undivided.FAULT,
    clip_before_unscale.FAULT,
    zero_stage_lowered.FAULT,
    partitions_not_gathered.FAULT,
    partition_summed.FAULT,
    gradient_scaled.FAULT,
    head_zeroed.FAULT,
    bit_flipped.FAULT,
    masks_drawn_again.FAULT,
    checkpointing_not_active.FAULT,
    ep_ignored.FAULT,
    batch_more.FAULT,
    barrier_on_rank_0.FAULT,
    rank_sleeps.FAULT,
    other_branch.FAULT,
    member_skips.FAULT,
    shapes_differ.FAULT,
)


def find(id: str) -> Fault:
    """Raises ValueError, naming those that exist."""
    for fault in FAULTS:
        if fault.id == id:
            return fault
    raise ValueError(f"--fault: there is no fault '{id}', expected one of {', '.join(fault.id for fault in FAULTS)}")


def plant(id: str, rung: Rung) -> None:
    """On every rank, before anything is built. Raises ValueError where there is no such fault."""
    find(id).plant(rung)
