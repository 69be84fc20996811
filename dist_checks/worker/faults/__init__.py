"""Bugs to plant: one file a fault, one line a fault in FAULTS."""

from __future__ import annotations

from dist_checks.rung import Rung
from dist_checks.worker.faults import (
    accumulated_divided,
    again,
    alone_on_one_host,
    balance_by_local_tokens,
    balance_of_the_batch,
    barrier_on_rank_0,
    batch_more,
    bit_flipped,
    buffer_recycled,
    buffers_of_their_own,
    checkpointing_not_active,
    clip_before_unscale,
    compile_falls_back,
    cp_loss_scale,
    cp_mask,
    cp_not_applied,
    cp_positions,
    divided_twice,
    ep_ignored,
    epoch_not_restored,
    evaluation_padded,
    everybody_is_rank_zero,
    expert_gradients_undivided,
    first_micro_batch_reduced,
    four_way_head,
    gradient_scaled,
    head_zeroed,
    host_multiplies_wrongly,
    last_micro_batch_unreduced,
    learning_stops,
    loader_states_dropped,
    local_norm,
    local_sgd_begins,
    loss_divided_by_tp,
    loss_scale_grows,
    masks_drawn_again,
    masks_drawn_again_under_tp,
    mean_of_means,
    member_skips,
    nn_all_gather,
    no_master_copy,
    norm_gradients_not_summed,
    not_applied,
    not_restored,
    order_never_changes,
    other_branch,
    own_initial_weights,
    parameter_replaced,
    partition_summed,
    partitions_not_gathered,
    pipeline_not_cut,
    plain_kernels,
    rank_sleeps,
    reduced_in_bf16,
    sampler_seed_of_its_own,
    samples_by_world_rank,
    schedule_ignored,
    shapes_differ,
    shard_group_of_one,
    shard_late,
    sharded_not_divided,
    shards_swapped,
    side_branch_unreduced,
    split_twice,
    stale_parameters,
    strided_all_reduce,
    strided_scatter,
    tie_not_summed,
    token_misrouted,
    tp_ranks_start_apart,
    variables_not_passed_on,
    weight_frozen,
    worlds_of_two,
    zero_stage_lowered,
)
from dist_checks.worker.faults.base import Fault
from dist_checks.worker.faults.disguise import disguise
from dist_checks.worker.mutations import planting as mutating

FAULTS: tuple[Fault, ...] = (
    order_never_changes.FAULT,
    sampler_seed_of_its_own.FAULT,
    epoch_not_restored.FAULT,
    split_twice.FAULT,
    worlds_of_two.FAULT,
    everybody_is_rank_zero.FAULT,
    evaluation_padded.FAULT,
    mean_of_means.FAULT,
    divided_twice.FAULT,
    last_micro_batch_unreduced.FAULT,
    first_micro_batch_reduced.FAULT,
    side_branch_unreduced.FAULT,
    parameter_replaced.FAULT,
    buffers_of_their_own.FAULT,
    own_initial_weights.FAULT,
    stale_parameters.FAULT,
    local_norm.FAULT,
    buffer_recycled.FAULT,
    norm_gradients_not_summed.FAULT,
    tp_ranks_start_apart.FAULT,
    loss_divided_by_tp.FAULT,
    samples_by_world_rank.FAULT,
    expert_gradients_undivided.FAULT,
    balance_by_local_tokens.FAULT,
    balance_of_the_batch.FAULT,
    clip_before_unscale.FAULT,
    zero_stage_lowered.FAULT,
    partitions_not_gathered.FAULT,
    partition_summed.FAULT,
    loader_states_dropped.FAULT,
    alone_on_one_host.FAULT,
    loss_scale_grows.FAULT,
    gradient_scaled.FAULT,
    head_zeroed.FAULT,
    bit_flipped.FAULT,
    learning_stops.FAULT,
    masks_drawn_again.FAULT,
    checkpointing_not_active.FAULT,
    ep_ignored.FAULT,
    token_misrouted.FAULT,
    batch_more.FAULT,
    barrier_on_rank_0.FAULT,
    rank_sleeps.FAULT,
    other_branch.FAULT,
    member_skips.FAULT,
    shapes_differ.FAULT,
    host_multiplies_wrongly.FAULT,
    accumulated_divided.FAULT,
    tie_not_summed.FAULT,
    pipeline_not_cut.FAULT,
    schedule_ignored.FAULT,
    sharded_not_divided.FAULT,
    cp_loss_scale.FAULT,
    cp_mask.FAULT,
    cp_not_applied.FAULT,
    cp_positions.FAULT,
    nn_all_gather.FAULT,
    strided_all_reduce.FAULT,
    compile_falls_back.FAULT,
    plain_kernels.FAULT,
    variables_not_passed_on.FAULT,
    shard_group_of_one.FAULT,
    four_way_head.FAULT,
    no_master_copy.FAULT,
    masks_drawn_again_under_tp.FAULT,
    reduced_in_bf16.FAULT,
    local_sgd_begins.FAULT,
    strided_scatter.FAULT,
    shard_late.FAULT,
    shards_swapped.FAULT,
    weight_frozen.FAULT,
    *not_restored.FAULTS,
    *not_applied.FAULTS,
    *again.FAULTS,
)


def find(ids: str) -> tuple[Fault, ...]:
    """Of one id, or of several with commas between them, mutants left out. Raises ValueError, naming those that
    exist."""
    known = {fault.id: fault for fault in FAULTS}
    wanted = ids.split(",")
    for id in wanted:
        if id.startswith(mutating.PREFIX):
            mutating.check(id)
        elif id not in known:
            raise ValueError(f"--fault: there is no fault '{id}', expected one of {', '.join(known)}")
    return tuple(known[id] for id in wanted if id in known)


def plant(ids: str, rung: Rung) -> None:
    """On every rank, before anything is built. Raises ValueError where there is no such fault."""
    for fault in find(ids):
        disguise(fault.plant)
        fault.plant(rung)
    for id in ids.split(","):
        if id.startswith(mutating.PREFIX):
            mutating.plant(id, rung)
